"""Readers of the click logs that papers compare on."""

from keras_recsys.data._row_checks import find_files
from keras_recsys.data.csv_files import first_line, read_csv

CRITEO_NUMBERS = tuple(f"I{i}" for i in range(1, 14))
CRITEO_STRINGS = tuple(f"C{i}" for i in range(1, 27))
TABS = "tabs and no line of names"
COMMAS = "commas and the name 'label'"
COMMAS_BIG_LABEL = "commas and the name 'Label'"
AVAZU_STRINGS = (
    "hour",
    "C1",
    "banner_pos",
    "site_id",
    "site_domain",
    "site_category",
    "app_id",
    "app_domain",
    "app_category",
    "device_id",
    "device_ip",
    "device_model",
    "device_type",
    "device_conn_type",
    *(f"C{i}" for i in range(14, 22)),
)


def read_criteo(paths, *, fill=0, **kwargs):
    """Reads the Criteo display advertising log.

    Both forms are read: the text of Kaggle, with tabs and no line of names, and files
    with commas and a line of names, as samples have it, where the label is `label` or
    `Label` and an `Id` may stand in front. The first lines of the files tell which;
    all are of one form.

    The counts `I1` to `I13` are float32, since some files write them as `260.0`, and
    the categories `C1` to `C26` strings, `""` where missing.

    Args:
        paths: As in `read_csv`.
        fill: As in `read_csv`. Defaults to `0`: a count that is missing is read as 0.
        **kwargs: `errors`, `report`, `vocabularies`, `batch_size`, `shuffle_rows`,
            `seed`, `drop_remainder` and `num_open_files` of `read_csv`.

    Returns:
        A `tf.data.Dataset` of pairs `(columns, labels)`, as of `read_csv`.

    Raises:
        TypeError: As `read_csv`.
        ValueError: As `read_csv`, and if the files are of several forms.
    """
    form = _criteo_form(find_files(paths))
    layout = {"label": "Label" if form == COMMAS_BIG_LABEL else "label"}
    if form == TABS:
        columns = ["label", *CRITEO_NUMBERS, *CRITEO_STRINGS]
        layout = {"label": "label", "header": columns, "delimiter": "\t"}
    schema = {
        **dict.fromkeys(CRITEO_NUMBERS, "float32"),
        **dict.fromkeys(CRITEO_STRINGS, "string"),
    }
    return read_csv(paths, schema, **layout, fill=fill, quoting=False, **kwargs)


def _criteo_form(files):
    """Returns the form of all files; those without a line are of any form."""
    forms = {}
    for file in files:
        line = first_line(file)
        if line is None:
            continue
        names = line.split(b",")
        if len(names) == 1 or b"\t" in line:
            form = TABS
        else:
            form = COMMAS_BIG_LABEL if b"Label" in names else COMMAS
        forms.setdefault(form, file)
    if len(forms) > 1:
        found = "; ".join(f"{file} with {form}" for form, file in forms.items())
        raise ValueError(f"`paths` must be files of one form. Received: {found}.")
    return next(iter(forms), COMMAS)


def read_avazu(paths, **kwargs):
    """Reads the Avazu click log: commas, and a line of names.

    All columns are categories and are read as strings, also those that look like
    numbers; `hour` is YYMMDDHH. The `id` of the row is left out.

    Args:
        paths: As in `read_csv`.
        **kwargs: `errors`, `report`, `vocabularies`, `batch_size`, `shuffle_rows`,
            `seed`, `drop_remainder` and `num_open_files` of `read_csv`.

    Returns:
        A `tf.data.Dataset` of pairs `(columns, labels)`, as of `read_csv`.

    Raises:
        TypeError: As `read_csv`.
        ValueError: As `read_csv`.
    """
    schema = dict.fromkeys(AVAZU_STRINGS, "string")
    return read_csv(paths, schema, label="click", quoting=False, **kwargs)
