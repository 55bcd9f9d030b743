"""All frozen records and their JSON form. Imports the standard library only.

Every public name of a module here is a name of this package, so public names must be unique.
"""

from tilewright.records.addresses import *
from tilewright.records.build import *
from tilewright.records.changed_files import *
from tilewright.records.dtypes import *
from tilewright.records.emulation import *
from tilewright.records.execution import *
from tilewright.records.formulas import *
from tilewright.records.gpu import *
from tilewright.records.gpu_identity import *
from tilewright.records.json_form import *
from tilewright.records.lint import *
from tilewright.records.measurement import *
from tilewright.records.run import *
from tilewright.records.steps import *
from tilewright.records.task import *
from tilewright.records.tensors import *
from tilewright.records.verdict import *
