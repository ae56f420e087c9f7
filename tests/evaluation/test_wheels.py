"""Two distributions: the product works without its evaluation, which adds its commands where it is installed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

ROOT = Path(__file__).parents[2]
EVALUATION = {"bench", "simulate", "lab", "papers", "peers", "weir_evaluation"}
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input"]


def build(source: Path, work: Path) -> Path:
    """Build a distribution from a copy of its sources, which keeps what the build leaves out of this folder."""
    copy, target = work / "source", work / "wheel"
    leftovers = shutil.ignore_patterns("__pycache__", "*.egg-info")
    shutil.copytree(source / "src", copy / "src", ignore=leftovers)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        if (source / name).exists():
            shutil.copy(source / name, copy)
    command = [*PIP, "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", str(target), str(copy)]
    subprocess.run(command, check=True)
    (wheel,) = target.iterdir()
    return wheel


@pytest.fixture(scope="module")
def wheels(tmp_path_factory):
    """The wheels of the product and of its evaluation."""
    work = tmp_path_factory.mktemp("wheels")
    return build(ROOT, work / "weir"), build(ROOT / "evaluation", work / "evaluation")


def installed_here(folder: Path, *without: str) -> Path:
    """Fill a folder with all that is installed here but Weir, and what else is named."""
    for site in {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}:
        for entry in Path(site).iterdir():
            if not entry.name.startswith(("weir", "__editable__", "__pycache__", *without)):
                (folder / entry.name).symlink_to(entry)
    return folder


@pytest.fixture(scope="module")
def dependencies(tmp_path_factory):
    """A folder with all that is installed here but Weir."""
    return installed_here(tmp_path_factory.mktemp("dependencies"))


def install(folder: Path, dependencies: Path, *wheels: Path) -> Path:
    """Make an environment of these wheels and the dependencies, and return where its programs are."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    programs = folder / "bin"
    options = ["--no-deps", "--no-index", "--no-compile", *map(str, wheels)]
    subprocess.run([*PIP, "--python", str(programs / "python"), "install", "-q", *options], check=True)
    (site,) = folder.glob("lib/python*/site-packages")
    (site / "dependencies.pth").write_text(f"{dependencies}\n")
    share_compiled(site)
    return programs


def share_compiled(site: Path) -> None:
    """Give an installation what is compiled here already, from the same source."""
    compiled = Path("weir/__pycache__/compiled")
    if (ROOT / "src" / compiled).exists():
        shutil.copytree(ROOT / "src" / compiled, site / compiled)


@pytest.fixture(scope="module")
def product(wheels, dependencies, tmp_path_factory):
    """The programs of an environment that has the product, but not its evaluation."""
    return install(tmp_path_factory.mktemp("product") / "venv", dependencies, wheels[0])


def run(folder: Path, *command: str | Path) -> subprocess.CompletedProcess[str]:
    """Run a command in a folder, out of reach of what this process can import."""
    hidden = ("PYTHONPATH", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "PYSPARK_SUBMIT_ARGS", "WEIR_MASTER")
    hidden += ("WEIR_FAULT", "COLUMNS")
    env = {name: value for name, value in os.environ.items() if name not in hidden}
    return subprocess.run(
        list(map(str, command)), cwd=folder, env=env, capture_output=True, text=True, timeout=300, check=False
    )


def names(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        return archive.namelist()


def entry_points(wheel: Path) -> str:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith("/entry_points.txt")]
        return archive.read(name).decode()


def test_the_wheel_of_weir_has_all_of_it_and_nothing_else(wheels):
    packaged = [name for name in names(wheels[0]) if ".dist-info/" not in name]
    pages = [p for p in (ROOT / "src/weir/watch/static").rglob("*") if p.is_file()]
    sources = [p for p in (ROOT / "src").rglob("*") if p.suffix == ".py" or p.name == "py.typed"] + pages
    assert sorted(packaged) == sorted(str(p.relative_to(ROOT / "src")) for p in sources)
    assert {name.split("/")[0] for name in packaged} == {"weir"}
    for name in packaged:
        assert not EVALUATION & {Path(part).stem for part in name.split("/")}
    assert "weir.commands" not in entry_points(wheels[0])


def test_the_wheel_of_the_evaluation_has_only_the_evaluation(wheels):
    packaged = [name for name in names(wheels[1]) if ".dist-info/" not in name]
    assert {name.split("/")[0] for name in packaged} == {"weir_evaluation"}
    assert "[weir.commands]" in entry_points(wheels[1])


@pytest.mark.long
def test_the_example_of_the_readme_runs_where_only_weir_is_installed(product, tmp_path):
    example = re.search(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.DOTALL | re.MULTILINE)
    assert example
    (tmp_path / "example.py").write_text(example[1])
    done = run(tmp_path, product / "python", "example.py")
    assert done.returncode == 0, done.stderr[-3000:]
    # workers that Spark leaves behind complain that it is gone, some in the middle of a word
    blocks = done.stderr.split("Traceback")[1:]
    assert [block for block in blocks if "/weir/" in block or "example.py" in block] == []
    assert "batch 3: 120 topics passed another fifty" in done.stdout
    assert "of the rows stayed on their server" in done.stdout
    where = run(tmp_path, product / "python", "-c", "import weir; print(weir.__file__)")
    assert Path(where.stdout.strip()).is_relative_to(product.parent)
    assert run(tmp_path, product / "python", "-c", "import weir_evaluation").returncode == 1


def test_the_commands_of_the_evaluation_come_with_it(wheels, product, dependencies, tmp_path):
    demo = run(tmp_path, product / "weir", "demo", "--help")
    assert demo.returncode == 0
    assert "--by-hash" in demo.stdout
    bench = run(tmp_path, product / "weir", "bench", "--help")
    assert bench.returncode == 1
    assert bench.stderr.startswith("weir: weir bench comes with weir-streams-evaluation")
    overview = run(tmp_path, product / "weir", "--help").stdout
    assert "advise" in overview
    assert "bench" not in overview
    both = install(tmp_path / "both", dependencies, *wheels)
    for name, says in (("bench", "engine"), ("lab", "status")):
        shown = run(tmp_path, both / "weir", name, "--help")
        assert shown.returncode == 0, shown.stderr
        assert says in shown.stdout
    # what the evaluation needs is this product, not a stranger's of the same name
    met = subprocess.run(
        [*PIP, "--python", str(both / "python"), "check"], capture_output=True, text=True, check=False
    )
    assert not [line for line in met.stdout.splitlines() if line.startswith("weir")], met.stdout


WITHOUT_SPARK = """
import weir, weir.testing
app = weir.source("place string, topic string").keyed("place", weir.Count(), name="places")
with weir.testing.start(app, servers=2) as query:
    query.feed([{"place": "a", "topic": "b"}] * 3)
    print(query.state("places").to_pylist())
from weir.extras import require_spark
try:
    require_spark()
except weir.WeirError as error:
    print(error)
"""


def test_all_but_running_on_spark_works_without_spark(wheels, tmp_path):
    (tmp_path / "dependencies").mkdir()
    needless = installed_here(tmp_path / "dependencies", "pyspark", "pandas", "py4j", "pymetis")
    programs = install(tmp_path / "venv", needless, wheels[0])
    done = run(tmp_path, programs / "python", "-c", WITHOUT_SPARK)
    assert done.returncode == 0, done.stderr
    assert "[{'place': 'a', 'count': 3}]" in done.stdout
    assert "pip install 'weir-streams[spark]'" in done.stdout
    pq.write_table(pa.table({"a": ["x", "y"] * 200, "b": ["u", "v"] * 200}), tmp_path / "rows.parquet")
    advice = run(tmp_path, programs / "weir", "advise", "rows.parquet", "--keys", "a,b", "--servers", "2")
    assert advice.returncode == 0, advice.stderr
