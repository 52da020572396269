//! Update rules, one file a family.

mod adam;
mod lamb;
mod lars;
mod lion;
mod muon;
mod schedule_free;
mod sgd;

use crate::rule::UpdateRule;
use lockstep_config::OptimName;

/// The rule of a name.
pub(crate) fn rule_of(name: OptimName) -> &'static dyn UpdateRule {
    match name {
        OptimName::Sgd => &sgd::Sgd,
        OptimName::Momentum => &sgd::HeavyBall,
        OptimName::Nesterov => &sgd::Nesterov,
        OptimName::Adam => &adam::Adam,
        OptimName::AdamW => &adam::AdamW,
        OptimName::Lars => &lars::Lars,
        OptimName::Lamb => &lamb::Lamb,
        OptimName::Lion => &lion::Lion,
        OptimName::Muon => &muon::Muon,
        OptimName::ScheduleFreeAdamW => &schedule_free::ScheduleFreeAdamW,
    }
}
