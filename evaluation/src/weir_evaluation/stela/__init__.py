"""Stela's six applications, and one scaling of each in the simulator."""
