"""How equivariant an ordinary network is already: the steering matrix of every layer, fitted to images."""

from flopping.probe.fit import Steering, steer
from flopping.probe.moments import Moments
from flopping.probe.report import LayerReport, Report
from flopping.probe.running import probe

__all__ = ["LayerReport", "Moments", "Report", "Steering", "probe", "steer"]
