"""Plans in process in the PTX emulator: a plan's memory, its run, and what was seen, as records.

Safe for any kernel: addresses are virtual and every access is checked, so nothing a kernel does reaches the process.
How long it may run is bounded by a budget of instructions, not of seconds; `devices.emulated_device` adds a child
process with a limit of both.
"""
