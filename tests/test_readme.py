"""The examples of the README run as they stand."""

import os
import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parent.parent
BLOCKS = re.findall(
    r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.DOTALL | re.MULTILINE
)


@pytest.mark.slow
def test_examples(tmp_path):
    """All blocks in one process, in order, as a reader would paste them."""
    assert BLOCKS
    script = tmp_path / "readme.py"
    script.write_text("\n".join(BLOCKS))
    done = subprocess.run(
        [sys.executable, script],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={
            **os.environ,
            "TF_CPP_MIN_LOG_LEVEL": "3",
            "PYTHONPATH": os.pathsep.join(
                [str(ROOT), os.environ.get("PYTHONPATH", "")]
            ),
        },
    )
    assert done.returncode == 0, done.stderr[-4000:]
