from commsim.api import Compared as Compared
from commsim.api import CostTable as CostTable
from commsim.api import Explained as Explained
from commsim.api import Machines as Machines
from commsim.api import Planned as Planned
from commsim.api import Ran as Ran
from commsim.api import Result as Result
from commsim.api import Swept as Swept
from commsim.api import compare as compare
from commsim.api import cost as cost
from commsim.api import cost_table as cost_table
from commsim.api import explain as explain
from commsim.api import explore as explore
from commsim.api import plan as plan
from commsim.api import plot as plot
from commsim.api import run as run
from commsim.api import run_all as run_all
from commsim.api import serve as serve
from commsim.api import sweep as sweep
from commsim.api import topologies as topologies
from commsim.api import write_report as write_report

__version__: str
