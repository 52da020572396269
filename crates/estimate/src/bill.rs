//! Days, dollars, energy and failures of a run.
