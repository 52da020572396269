//! Time of calls between workers of this engine, by the price of their schedules.

use crate::calibration::machine::MachineCalibration;
use crate::traffic::{Call, GroupCalls, Interconnect, SelectedSchedules};
use lockstep_config::units::Seconds;

/// Time of a group's calls, with their bucket.
pub(super) fn prices(
    calls: &GroupCalls,
    interconnect: &Interconnect,
    ranks: &[usize],
    machine: &MachineCalibration<'_>,
) -> Vec<(usize, Seconds)> {
    let interconnect = interconnect.among(ranks);
    let costs = machine.costs(&interconnect.costs);
    let mut chosen = SelectedSchedules::new(&interconnect, &calls.contributions);
    let price = |call: &Call| {
        let seconds = interconnect.call_seconds(chosen.of(call), call, &costs);
        (call.bucket, seconds * call.times as f64)
    };
    calls.list.iter().map(price).collect()
}
