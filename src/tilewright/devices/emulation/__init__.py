"""Runs plans in process in the PTX emulator.

Safe for any kernel: addresses are virtual and every access is checked. The run time is bounded by an instruction
budget; `devices.child_device.EmulatedDevice` adds a child process with limits of time and memory.
"""
