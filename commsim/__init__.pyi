from commsim.api import Result as Result
from commsim.api import plot as plot
from commsim.api import run as run
from commsim.api import run_all as run_all

__version__: str
