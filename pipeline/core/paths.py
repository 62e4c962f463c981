"""The project's directories, relative to the repository and not to the working directory."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CONF = ROOT / "conf"
ASSETS = ROOT / "assets"
OUTPUTS = ROOT / "outputs"
