//! Update rules, one file a family.

mod adafactor;
mod adam;
mod adamw_8bit;
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
        OptimName::Adafactor => &adafactor::Adafactor,
        OptimName::Sgd => &sgd::Sgd,
        OptimName::Momentum => &sgd::HeavyBall,
        OptimName::Nesterov => &sgd::Nesterov,
        OptimName::Adam => &adam::Adam,
        OptimName::AdamW => &adam::AdamW,
        OptimName::AdamW8Bit => &adamw_8bit::AdamW8Bit,
        OptimName::Lars => &lars::Lars,
        OptimName::Lamb => &lamb::Lamb,
        OptimName::Lion => &lion::Lion,
        OptimName::Muon => &muon::Muon,
        OptimName::ScheduleFreeAdamW => &schedule_free::ScheduleFreeAdamW,
    }
}
