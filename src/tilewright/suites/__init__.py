"""Suites: many tasks by one author on one GPU, made side by side, resumable, and what came of them in numbers."""

from tilewright.suites.collecting import NoTasks, folder_tasks, kernelbench_tasks
from tilewright.suites.figures import Against, Summary, summarise
from tilewright.suites.pools import Lost, Pool, SuiteWatcher, carry_out
from tilewright.suites.suite_folder import OtherSuite, Status, Suite, SuiteFolder, SuiteTask, TaskRecord
