"""Dagster: an asset that is brought up to date by working off what has come, every hour.

A stream that runs for ever is no asset: give that to systemd or Kubernetes. `trigger` makes it end with what is there
now. Compiled here, not run: Dagster is not installed where this is tested.
"""

import json
import subprocess

import dagster as dg

COMMAND = ["/opt/weir/.venv/bin/weir", "run", "app.py:app", "--config", "weir.toml"]


@dg.asset(retry_policy=dg.RetryPolicy(max_retries=3, delay=60))
def topics(context: dg.AssetExecutionContext) -> dg.MaterializeResult:
    """Posts per topic, up to now."""
    command = [*COMMAND, "--set", "trigger={availableNow = true}", "--json"]
    done = subprocess.run(command, cwd="/opt/weir", stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode == 2:  # refused: trying again would not help
        raise dg.Failure("weir run was refused; its log says why", allow_retries=False)
    if done.returncode:
        raise dg.Failure(f"weir run ended with exit code {done.returncode}")
    return dg.MaterializeResult(metadata={"last batch": json.loads(done.stdout)["batch"]})


# one at a time: a second driver would take over from the first
job = dg.define_asset_job("bring_topics_up_to_date", [topics], tags={"dagster/concurrency_key": "weir-posts"})
schedule = dg.ScheduleDefinition(job=job, cron_schedule="0 * * * *")
definitions = dg.Definitions(assets=[topics], jobs=[job], schedules=[schedule])
