"""The quickstarts, one module each.

A recipe has `EPOCHS`, its default; `FILES`, from each name that it writes to what it
is; `NEXT`, where to go on; and `run`, which trains, compares and writes.
"""

import os

from keras_recsys._quickstart import clicks, forecast
from keras_recsys._quickstart.common import check_out, check_packages, one_line
from keras_recsys.serving._place import move_into_place, workspace

RECIPES = {"fibinet": clicks, "informer": forecast}


def quickstart(options):
    """Runs the quickstart and prints what it does.

    Args:
        options: The options of the command line.

    Raises:
        QuickstartError: If the user has something to mend; nothing was written then.
    """
    recipe = RECIPES[options.model]
    check_packages()
    known = {name for other in RECIPES.values() for name in other.FILES}
    out = check_out(options.out, options.overwrite, known)
    with one_line(OSError), workspace(out) as room:
        folder = room / "out"
        folder.mkdir()
        recipe.run(options, folder, out)
        move_into_place(folder, out, room)
    print(f"\nIn {options.out}:")
    for name, what in recipe.FILES.items():
        print(f"  {name:18} {what}")
    client = os.path.join(options.out, "client.py")
    print(f"\nNext: `python {client}` asks the served model. {recipe.NEXT}")
