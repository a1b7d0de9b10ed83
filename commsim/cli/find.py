"""Where a scenario named on the command line lies: in a file of the user's, or among those that ship with commsim."""

from __future__ import annotations

from collections import Counter
from difflib import get_close_matches
from pathlib import Path

from commsim.errors import ScenarioError
from commsim.files import data_root


def find_scenario(name: str) -> Path:
    """The path of a scenario file; a shipped one may be named with or without its folder and suffix."""
    path = Path(name)
    try:
        if path.exists() or path.is_absolute():
            return path
        folder = data_root() / "scenarios"
        relative = path.relative_to("scenarios") if path.parts[:1] == ("scenarios",) else path
        for candidate in (folder / relative, folder / f"{relative}.yaml"):
            if candidate.is_file():
                return candidate
        shipped = sorted(str(p.relative_to(folder).with_suffix("")) for p in folder.rglob("*.yaml"))
    except (OSError, ValueError) as error:
        raise ScenarioError(f"found {name[:80]!r}, expected the name of a scenario file ({error})") from None
    if path.suffix in (".yaml", ".yml") and len(path.parts) > 1 and path.parts[0] != "scenarios":
        return path  # the loader says that there is no such file
    if (data_root() / "topologies" / f"{name}.yaml").is_file():
        raise ScenarioError(
            f"found the preset {name!r}, expected a scenario, which names it as topology: {{preset: {name}}}"
        )
    near = get_close_matches(relative.with_suffix("").as_posix(), shipped, n=3, cutoff=0.5)
    hint = f"; did you mean {' or '.join(near)}?" if near else f"; shipped scenarios are {_overview(shipped)}"
    raise ScenarioError(f"found no scenario file {name!r}{hint}")


def _overview(shipped: list[str]) -> str:
    """The names at the top, and how many each folder has."""
    top = [name for name in shipped if "/" not in name]
    folders = Counter(name.partition("/")[0] for name in shipped if "/" in name)
    return f"{', '.join(top)}, and those of {', '.join(f'{folder}/ ({n})' for folder, n in folders.items())}"
