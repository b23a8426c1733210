"""How equivariant an ordinary network is already: the steering matrix of every layer, fitted to images."""

from flopping.lab.probe.fit import Moments, Steering, steer
from flopping.lab.probe.report import LayerReport, Report
from flopping.lab.probe.running import probe

__all__ = ["LayerReport", "Moments", "Report", "Steering", "probe", "steer"]
