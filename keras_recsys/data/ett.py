"""The ETT data set: oil temperature and load of power transformers."""

import pathlib

import keras

from keras_recsys._checks import check_choice
from keras_recsys.data.time_series import read_time_series

COLUMNS = ("HUFL", "HULL", "MUFL", "MULL", "LUFL", "LULL", "OT")
ORIGIN = "https://raw.githubusercontent.com/zhouhaoyi/ETDataset/main/ETT-small/"
FREQUENCIES = {"ETTh1": "h", "ETTh2": "h", "ETTm1": "15min", "ETTm2": "15min"}
SHA256 = {
    "ETTh1": "f18de3ad269cef59bb07b5438d79bb3042d3be49bdeecf01c1cd6d29695ee066",
    "ETTh2": "a3dc2c597b9218c7ce1cd55eb77b283fd459a1d09d753063f944967dd6b9218b",
    "ETTm1": "6ce1759b1a18e3328421d5d75fadcb316c449fcd7cec32820c8dafda71986c9e",
    "ETTm2": "db973ca252c6410a30d0469b13d696cf919648d0f3fd588c60f03fdbdbadd1fd",
}
MONTH = 30 * 24  # hours
ENDS = (12 * MONTH, 16 * MONTH, 20 * MONTH)


def load_ett(name="ETTh1", path=None):
    """Loads a file of the Electricity Transformer Temperature data set.

    The rows are of July 2016 to June 2018. The licence of the data is CC BY-ND 4.0:
    scaled, resampled or cut copies must not be passed on.

    Args:
        name: `"ETTh1"` or `"ETTh2"`, hourly, `"ETTm1"` or `"ETTm2"`, every 15 minutes.
            Defaults to `"ETTh1"`.
        path: The file, or a folder with a file `{name}.csv`. Defaults to `None`: the
            file is downloaded once into the cache of Keras, and its checksum is
            checked.

    Returns:
        A `TimeSeries` with the loads `HUFL`, `HULL`, `MUFL`, `MULL`, `LUFL`, `LULL` and
        the target `OT`, the oil temperature.

    Raises:
        FileNotFoundError: If there is no such file.
        ImportError: If pandas is not installed.
        OSError: If the download fails or its checksum is another.
        ValueError: If `name` is unknown or the file is not of this data set.

    Reference:
        Zhou et al., "Informer: Beyond Efficient Transformer for Long Sequence
        Time-Series Forecasting", AAAI 2021. Files of github.com/zhouhaoyi/ETDataset.
    """
    check_choice("name", name, tuple(FREQUENCIES))
    if path is None:
        path = _download(name)
    else:
        path = pathlib.Path(path)
        path = path / f"{name}.csv" if path.is_dir() else path
        if not path.is_file():
            raise FileNotFoundError(
                f"`path` must be a file, or a folder with {name}.csv. "
                f"Received: path={str(path)!r}."
            )
    return read_time_series(
        path, time="date", frequency=FREQUENCIES[name], columns=COLUMNS, target="OT"
    )


def ett_borders(name="ETTh1"):
    """The rows at which train, validation and test of the paper end.

    They are 12, 4 and 4 months of 30 days; later rows are not used.

    Args:
        name: `"ETTh1"`, `"ETTh2"`, `"ETTm1"` or `"ETTm2"`. Defaults to `"ETTh1"`.

    Returns:
        Tuple of three ints, the `borders` of `split_time_series`.

    Raises:
        ValueError: If `name` is unknown.

    Example:
    >>> ett_borders("ETTh1"), ett_borders("ETTm1")
    ((8640, 11520, 14400), (34560, 46080, 57600))
    """
    check_choice("name", name, tuple(FREQUENCIES))
    return tuple(end * (1 if FREQUENCIES[name] == "h" else 4) for end in ENDS)


def _download(name):
    url = f"{ORIGIN}{name}.csv"
    try:
        return keras.utils.get_file(
            f"{name}.csv",
            url,
            file_hash=SHA256[name],
            hash_algorithm="sha256",
            cache_subdir="datasets/ett",
        )
    except Exception as error:  # Keras raises a plain `Exception`
        raise OSError(
            f"{url} cannot be downloaded. Give the file as `path` instead. "
            f"Received: {error}"
        ) from error
