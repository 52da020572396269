//! Bytes of a step from each rank to each other one, counted from the schedules of its calls.

use super::call::{Call, GroupCalls, StepCalls};
use super::{Interconnect, SelectedSchedules, call, rank_at};
use lockstep_config::units::Bytes;
use lockstep_mesh::Axis;
use lockstep_schedule::{Schedule, Step};

/// Bytes by sending and receiving rank. Requests to parameter servers and updates of federated
/// clients have no fixed pairs and are left out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BytesByPair {
    /// Bytes from the first rank to the second.
    pub bytes: Vec<Vec<u64>>,
}

impl BytesByPair {
    /// Counts the calls and messages of a step.
    pub fn of(step: &StepCalls, interconnect: &Interconnect) -> Self {
        let num_ranks = step.mesh.num_ranks();
        let mut pairs = Self { bytes: vec![vec![0; num_ranks]; num_ranks] };
        for (device, tp_ranks) in step.data.iter().enumerate() {
            for (tp_rank, calls) in tp_ranks.iter().enumerate() {
                let rank = |part| rank_at(&step.mesh, device, part, tp_rank);
                pairs.add_calls(calls, interconnect, &rank);
            }
        }
        for (device, parts) in step.tensor.iter().enumerate() {
            for (part, calls) in parts.iter().enumerate() {
                let rank = |tp_rank| rank_at(&step.mesh, device, part, tp_rank);
                pairs.add_calls(calls, interconnect, &rank);
            }
        }
        for (members, calls) in &step.after_step {
            pairs.add_calls(calls, interconnect, &|member| members[member]);
        }
        for (from, messages) in step.neighbor_messages.iter().enumerate() {
            for message in messages {
                pairs.add(from, message.to, call::ELEMENT * (message.len as u64 * message.times));
            }
        }
        for (device, parts) in step.messages.iter().enumerate() {
            for (part, messages) in parts.iter().enumerate() {
                for tp_rank in 0..step.mesh.degree(Axis::Tensor) {
                    for message in messages {
                        let from = rank_at(&step.mesh, device, part, tp_rank);
                        let to = rank_at(&step.mesh, message.to, part, tp_rank);
                        let bytes = call::ELEMENT * (message.len as u64 * message.times);
                        pairs.add(from, to, bytes);
                    }
                }
            }
        }
        pairs
    }

    /// Bytes of all pairs.
    pub fn total(&self) -> Bytes {
        Bytes(self.bytes.iter().flatten().sum())
    }

    fn add(&mut self, from: usize, to: usize, bytes: Bytes) {
        self.bytes[from][to] += bytes.0;
    }

    fn add_calls(
        &mut self,
        calls: &GroupCalls,
        interconnect: &Interconnect,
        rank: &dyn Fn(usize) -> usize,
    ) {
        let group: Vec<usize> = (0..calls.contributions.num_ranks()).map(rank).collect();
        let among = interconnect.among(&group);
        let mut selected = SelectedSchedules::new(&among, &calls.contributions);
        for call in &calls.list {
            self.add_call(call, selected.of(call), &group);
        }
    }

    fn add_call(&mut self, call: &Call, schedule: &Schedule, group: &[usize]) {
        let layout = call.layout(schedule);
        for (own, rounds) in schedule.programs.iter().enumerate() {
            for step in rounds.iter().flatten() {
                let bytes = call.element * layout.len(step.chunks()) as u64 * call.times;
                match step {
                    Step::Send { peer, .. } => self.add(group[own], group[*peer], bytes),
                    Step::Copy { .. } | Step::Reduce { .. } => {
                        for place in step.reads(own).into_iter().filter(|it| it.rank != own) {
                            self.add(group[place.rank], group[own], bytes);
                        }
                        for place in step.writes(own).into_iter().filter(|it| it.rank != own) {
                            self.add(group[own], group[place.rank], bytes);
                        }
                    }
                    Step::Recv { .. }
                    | Step::RecvReduce { .. }
                    | Step::Signal
                    | Step::Wait { .. } => {}
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::forecast::Forecast;
    use crate::memory::Process;
    use crate::traffic::total;
    use lockstep_config::{Recipe, Sources, resolve};

    fn recipe(sets: &[&str]) -> Recipe {
        let sets = sets.iter().map(|set| (*set).to_owned()).collect();
        let preset = Some("tiny".to_owned());
        resolve(&Sources { preset, sets, ..Sources::default() }).unwrap()
    }

    #[test]
    fn all_pairs_together_have_the_bytes_that_ranks_move() {
        for sets in [
            &["run.workers=4"][..],
            &["run.workers=4", "parallel.pipeline=2"],
            &["run.workers=4", "parallel.tensor=2", "parallel.zero=1"],
            &["run.workers=4", "sync.mode=gossip"],
        ] {
            let recipe = recipe(sets);
            let interconnect = Interconnect::of_recipe(&recipe);
            let forecast = Forecast::unchecked(&recipe, Process::default(), None);
            let [(_, step)] = &forecast.step_classes[..] else { panic!("{sets:?}: one class") };
            let pairs = BytesByPair::of(step, &interconnect);
            let moved: u64 = forecast.traffic.iter().map(|rank| total(rank).wire_bytes().0).sum();
            assert!(moved > 0, "{sets:?}");
            assert_eq!(pairs.total(), Bytes(moved), "{sets:?}");
            assert!((0..4).all(|rank| pairs.bytes[rank][rank] == 0), "{sets:?}");
        }
    }
}
