"""Airflow: work off what has come, once an hour, and go on from there the next time.

A stream that runs for ever is no task of a DAG: give that to systemd or Kubernetes. `trigger` makes it end with what is
there now. Compiled here, not run: Airflow is not installed where this is tested.
"""

from datetime import datetime, timedelta

from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import DAG

# exec: the signal of a task that is ended reaches it, and lets the batch end
RUN = "cd /opt/weir && exec .venv/bin/weir run app.py:app --config weir.toml"

with DAG(
    "weir_posts",
    schedule="@hourly",
    start_date=datetime(2026, 1, 1),
    catchup=False,
    max_active_runs=1,  # a second driver would take over from the first
):
    # refused with exit code 2, before anything runs
    check = BashOperator(task_id="check", bash_command=f"{RUN} --check")
    run = BashOperator(
        task_id="run",
        bash_command=RUN + " --set 'trigger={availableNow = true}'",
        retries=3,
        retry_delay=timedelta(minutes=1),
    )
    check >> run
