import os
import pathlib
import shutil
import tempfile

import nbclient
import nbformat
import pytest

ROOT = pathlib.Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


def test_there_are_notebooks():
    assert NOTEBOOKS


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_is_committed_executed_and_clean(path):
    assert path.stat().st_size < 500_000
    notebook = nbformat.read(path, as_version=4)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    for output in (output for cell in cells for output in cell.outputs):
        assert output.output_type != "error"
        assert output.get("name") != "stderr"
        for trace in ("Warning", tempfile.gettempdir(), str(pathlib.Path.home())):
            assert trace not in str(output.get("text", output.get("data")))


@pytest.mark.notebook
@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
# The client starts its kernel over TCP and says so.
@pytest.mark.filterwarnings("ignore:.*(TCP|encryption).*")
def test_runs(path, tmp_path, monkeypatch):
    monkeypatch.setenv("KERAS_RECSYS_FAST", "1")
    search = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, search)))
    copy = shutil.copy(path, tmp_path)
    notebook = nbformat.read(copy, as_version=4)
    client = nbclient.NotebookClient(
        notebook,
        timeout=300,
        kernel_name="python3",
        resources={"metadata": {"path": tmp_path}},
    )
    client.execute()  # raises CellExecutionError with the cell and its error
