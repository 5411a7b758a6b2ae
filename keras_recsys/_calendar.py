"""Frequencies and calendar arithmetic.

Times are int64 seconds since 1970-01-01 00:00:00. The arithmetic is written with
operators alone, so that it takes NumPy arrays and TensorFlow tensors alike.
"""

import dataclasses
import re

import numpy as np

from keras_recsys._checks import check_choice, check_int

EMBEDDINGS = ("timeF", "fixed", "learned")

# Names of the fields of each unit, in the order of the columns of the features.
SCALED = {
    "s": ("second", "minute", "hour", "weekday", "day", "yearday"),
    "t": ("minute", "hour", "weekday", "day", "yearday"),
    "h": ("hour", "weekday", "day", "yearday"),
    "d": ("weekday", "day", "yearday"),
    "b": ("weekday", "day", "yearday"),
    "w": ("day", "isoweek"),
    "m": ("month",),
    "q": ("month",),
    "y": (),
}
INTEGER = {
    "s": ("month", "day", "weekday", "hour", "minute"),
    "t": ("month", "day", "weekday", "hour", "minute"),
    "h": ("month", "day", "weekday", "hour"),
    "d": ("month", "day", "weekday"),
    "b": ("month", "day", "weekday"),
    "w": ("month",),
    "m": ("month",),
    "q": ("month",),
    "y": (),
}
UNITS = tuple(SCALED)
# Integer fields lie in [0, size). Months and days count from 1; the minute is the
# quarter of the hour.
TABLE_SIZES = {"month": 13, "day": 32, "weekday": 7, "hour": 24, "minute": 4}
# The smallest value of a field and the width of its range.
RANGES = {
    "second": (0, 59),
    "minute": (0, 59),
    "hour": (0, 23),
    "weekday": (0, 6),
    "day": (1, 30),
    "yearday": (1, 365),
    "month": (1, 11),
    "isoweek": (1, 52),
}

SECONDS = {"s": 1, "t": 60, "h": 3600, "d": 86400, "w": 604800}
MONTHS = {"m": 1, "q": 3, "y": 12}
SPELLINGS = {
    "s": ("s", "S"),
    "t": ("t", "T", "min"),
    "h": ("h", "H"),
    "d": ("d", "D"),
    "b": ("b", "B"),
    "w": ("w", "W"),
    "m": ("m", "MS"),
    "q": ("q", "QS"),
    "y": ("y", "a", "YS", "AS"),
}
ENDS = {"m": ("ME", "M"), "q": ("QE", "Q"), "y": ("YE", "Y", "A")}
ANCHORS = {
    "w": ("MON", "TUE", "WED", "THU", "FRI", "SAT", "SUN"),
    "q": "JAN FEB MAR APR MAY JUN JUL AUG SEP OCT NOV DEC".split(),
    "y": "JAN FEB MAR APR MAY JUN JUL AUG SEP OCT NOV DEC".split(),
}
PATTERN = re.compile(r"([0-9]*)\s*([A-Za-z]+)(?:-([A-Z]{3}))?")
# Days from 0000-03-01 to 1970-01-01. A year that begins in March ends in its leap day.
EPOCH = 719468


@dataclasses.dataclass(frozen=True)
class Frequency:
    """A multiple of a unit of time, the step from one row of a series to the next.

    Args:
        count: Positive int, units in a step. Defaults to `1`.
        unit: `"s"` second, `"t"` minute, `"h"` hour, `"d"` day, `"b"` business day,
            `"w"` week, `"m"` month, `"q"` quarter or `"y"` year. Defaults to `"h"`.
        end: Whether steps of months, quarters and years go from the last day of a month
            to the last day of another. Otherwise they keep the day of the month, cut to
            the length of the month. Defaults to `False`.

    Raises:
        TypeError: If `count` is no integer or `end` no bool.
        ValueError: If `count` is below 1, `unit` is unknown, or `end` is `True` for a
            unit below a month.
    """

    count: int = 1
    unit: str = "h"
    end: bool = False

    def __post_init__(self):
        check_int("count", self.count)
        check_choice("unit", self.unit, UNITS)
        if not isinstance(self.end, bool):
            raise TypeError(f"`end` must be True or False. Received: end={self.end!r}.")
        if self.end and self.unit not in MONTHS:
            raise ValueError(
                "`end` must be False where `unit` is not 'm', 'q' or 'y'. "
                f"Received: end={self.end!r}, unit={self.unit!r}."
            )

    @classmethod
    def parse(cls, frequency):
        """Reads a frequency string, spelled as by pandas or by the paper's code.

        Units are `s`, `min` or `t`, `h`, `d`, `b`, `w`, `m`, `q`, and `y` or `a`, in
        upper case too, with a multiple before and an anchor of pandas behind, such as
        `W-SUN`. As in pandas, `ME`, `QE`, `YE`, and `M`, `Q`, `Y`, `A` in upper case,
        are ends of months, `MS`, `QS`, `YS` beginnings. `"m"` is a month, as in the
        paper's code; several are `"2MS"`, since `"15m"` could be minutes.

        Args:
            frequency: String, `Frequency`, or offset of pandas.

        Returns:
            A `Frequency`.

        Raises:
            ValueError: If it is none.
        """
        if isinstance(frequency, cls):
            return frequency
        text = getattr(frequency, "freqstr", frequency)
        match = PATTERN.fullmatch(text.strip()) if isinstance(text, str) else None
        if match:
            count, spelling, anchor = match.groups()
            for unit in UNITS:
                end = spelling in ENDS.get(unit, ())
                is_unit = end or spelling in SPELLINGS[unit]
                fits = anchor is None or anchor in ANCHORS.get(unit, ())
                if is_unit and fits and int(count or 1) > 0:
                    if spelling == "m" and int(count or 1) > 1:
                        raise ValueError(
                            "`frequency` must be spelled 'min' for minutes and 'MS' "
                            "or 'ME' for months where there are several of them. "
                            f"Received: frequency={frequency!r}."
                        )
                    return cls(int(count or 1), unit, end)
        raise ValueError(
            "`frequency` must be a unit of s, min or t, h, d, b, w, m, q, y, or of "
            "pandas, with or without a positive multiple before it, such as 'h', "
            f"'15min' or 'MS'. Received: frequency={frequency!r}."
        )

    def __str__(self):
        spelling = ENDS[self.unit][0] if self.end else self.unit
        if self.unit == "t":
            spelling = "min"
        if self.unit == "m" and self.count > 1 and not self.end:
            spelling = "MS"  # "2m" could be minutes
        return f"{self.count}{spelling}" if self.count > 1 else spelling


def civil_from_days(days):
    """Year, month and day of the month of days since 1970-01-01."""
    days = days + EPOCH
    century = (4 * days + 3) // 146097
    days = days - 146097 * century // 4
    year = (4 * days + 3) // 1461
    days = days - 1461 * year // 4
    month = (5 * days + 2) // 153  # 0 is March
    day = days - (153 * month + 2) // 5 + 1
    return 100 * century + year + (month + 2) // 12, (month + 2) % 12 + 1, day


def days_from_civil(year, month, day):
    """Days since 1970-01-01 of a year, a month and a day of the month."""
    year = year - (14 - month) // 12  # January and February end the year before
    month = (month + 9) % 12
    leaps = year // 4 - year // 100 + year // 400
    return 365 * year + leaps + (153 * month + 2) // 5 + day - 1 - EPOCH


def calendar_fields(seconds):
    """Dict from the names of `RANGES` to int64 values; weekday 0 is Monday."""
    days = seconds // 86400
    clock = seconds % 86400
    year, month, day = civil_from_days(days)
    weekday = (days + 3) % 7
    # A week belongs to the year of its Thursday.
    thursday = days - weekday + 3
    week_year, _, _ = civil_from_days(thursday)
    return {
        "second": clock % 60,
        "minute": clock // 60 % 60,
        "hour": clock // 3600,
        "weekday": weekday,
        "day": day,
        "yearday": days - days_from_civil(year, 1, 1) + 1,
        "month": month,
        "isoweek": (thursday - days_from_civil(week_year, 1, 1)) // 7 + 1,
    }


def scaled_fields(seconds, unit):
    """List of the fields `SCALED[unit]` as float64 in `[-0.5, 0.5]`."""
    fields = calendar_fields(seconds)
    return [
        (fields[name] - RANGES[name][0]) / RANGES[name][1] - 0.5
        for name in SCALED[unit]
    ]


def integer_fields(seconds, unit):
    """List of the fields `INTEGER[unit]` as int64, rows of tables of `TABLE_SIZES`."""
    fields = calendar_fields(seconds)
    fields["minute"] = fields["minute"] // 15
    return [fields[name] for name in INTEGER[unit]]


def add_steps(seconds, frequency, steps):
    """Times a number of steps later, or earlier where it is negative.

    Business days skip Saturday and Sunday and count from the Friday before if they
    begin there. Months, quarters and years keep the time of the day and the day of the
    month, cut to the length of the month: one month after January 31 is February 28,
    two are March 31. With `frequency.end` the day is always the last of its month.

    Args:
        seconds: Int64 array or tensor of times.
        frequency: `Frequency`.
        steps: Int64 array or tensor that broadcasts with `seconds`.

    Returns:
        Int64 array or tensor of times.
    """
    steps = steps * frequency.count
    if frequency.unit in SECONDS:
        return seconds + steps * SECONDS[frequency.unit]
    days = seconds // 86400
    if frequency.unit == "b":
        weekday = (days + 3) % 7
        workday = 5 * ((days + 3) // 7) + weekday - weekday // 5 - weekday // 6 + steps
        later = 7 * (workday // 5) + workday % 5 - 3
    else:
        year, month, day = civil_from_days(days)
        month = 12 * year + month - 1 + steps * MONTHS[frequency.unit]
        first = days_from_civil(month // 12, month % 12 + 1, 1)
        length = days_from_civil((month + 1) // 12, (month + 1) % 12 + 1, 1) - first
        if frequency.end:
            later = first + length - 1
        else:
            later = first + (day + length - abs(day - length)) // 2 - 1  # the smaller
    return 86400 * later + seconds % 86400


def is_month_end(seconds):
    """Whether the day after is the first of a month."""
    return civil_from_days(seconds // 86400 + 1)[2] == 1


def infer_frequency(seconds):
    """The frequency of times without gaps.

    A step that fits months is read as months, then a constant step as the largest unit
    that divides it, then steps as business days.

    Args:
        seconds: NumPy int64 array of at least 3 times that rise.

    Returns:
        A `Frequency`, or `None` if none fits.
    """
    if len(seconds) < 3:
        return None
    year, month, _ = civil_from_days(seconds[:2] // 86400)
    months = int(12 * (year[1] - year[0]) + month[1] - month[0])
    candidates = []
    if months > 0:
        unit = next(unit for unit in "yqm" if months % MONTHS[unit] == 0)
        candidates += [
            Frequency(months // MONTHS[unit], unit, end) for end in (True, False)
        ]
    step = int(seconds[1] - seconds[0])
    if step > 0:
        unit = next(unit for unit in "wdhts" if step % SECONDS[unit] == 0)
        candidates.append(Frequency(step // SECONDS[unit], unit))
    candidates.append(Frequency(1, "b"))
    numbers = np.arange(len(seconds))
    for frequency in candidates:
        if (add_steps(seconds[0], frequency, numbers) == seconds).all():
            return frequency
    return None
