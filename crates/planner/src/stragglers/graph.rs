//! Replay of recorded operations: ends of all operations of a step, for given durations.
//!
//! An operation starts when those that it waits for have ended. A communication of several ranks
//! transfers when its last member has started; each member then has its own transfer time. The
//! graph of a step is built once and replayed with many sets of durations.

/// Index of an operation.
pub(super) type Index = u32;

/// Operations of one step on all ranks, with their dependencies.
#[derive(Debug, Default)]
pub(super) struct Graph {
    /// By operation: those that it waits for.
    after: Vec<Vec<Index>>,
    /// Units in an order in which each finds its dependencies done: single operations, or the
    /// members of a communication.
    units: Vec<Vec<Index>>,
}

/// Operations wait for each other in a circle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Circle;

impl Graph {
    /// Graph of operations with these dependencies; `meetings` are communications of several
    /// operations, each of which is in one at most.
    pub(super) fn new(after: Vec<Vec<Index>>, meetings: Vec<Vec<Index>>) -> Result<Self, Circle> {
        let mut unit_of = vec![None; after.len()];
        let mut units = meetings;
        for (unit, members) in units.iter().enumerate() {
            for member in members {
                unit_of[*member as usize] = Some(unit);
            }
        }
        let unit_of: Vec<usize> = (0..)
            .zip(unit_of)
            .map(|(operation, unit)| {
                unit.unwrap_or_else(|| {
                    units.push(vec![operation]);
                    units.len() - 1
                })
            })
            .collect();
        let mut next: Vec<Vec<usize>> = vec![Vec::new(); units.len()];
        let mut num_waiting = vec![0_usize; units.len()];
        for (operation, before) in after.iter().enumerate() {
            for before in before {
                next[unit_of[*before as usize]].push(unit_of[operation]);
                num_waiting[unit_of[operation]] += 1;
            }
        }
        let mut order: Vec<usize> = (0..units.len()).filter(|at| num_waiting[*at] == 0).collect();
        let mut done = 0;
        while let Some(unit) = order.get(done).copied() {
            done += 1;
            for follower in &next[unit] {
                num_waiting[*follower] -= 1;
                if num_waiting[*follower] == 0 {
                    order.push(*follower);
                }
            }
        }
        if order.len() < units.len() {
            return Err(Circle);
        }
        let units = order.into_iter().map(|unit| std::mem::take(&mut units[unit])).collect();
        Ok(Self { after, units })
    }

    /// Ends of all operations, from the start of the step, for their own durations: of a
    /// computation, or of the transfer of a communication.
    pub(super) fn ends(&self, seconds: impl Fn(usize) -> f64, ends: &mut Vec<f64>) {
        ends.clear();
        ends.resize(self.after.len(), 0.0);
        for members in &self.units {
            let mut start = 0.0_f64;
            for member in members {
                let before = &self.after[*member as usize];
                start = before.iter().fold(start, |start, at| start.max(ends[*at as usize]));
            }
            for member in members {
                ends[*member as usize] = start + seconds(*member as usize);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_communication_starts_with_its_last_member_and_circles_are_refused() {
        // Two ranks compute (0 and 1), meet (2 and 3), and the first computes again (4).
        let after = vec![vec![], vec![], vec![0], vec![1], vec![2]];
        let graph = Graph::new(after.clone(), vec![vec![2, 3]]).expect("no circle");
        let mut ends = Vec::new();
        graph.ends(|at| [1.0, 3.0, 0.5, 0.25, 2.0][at], &mut ends);
        assert_eq!(ends, [1.0, 3.0, 3.5, 3.25, 5.5]);

        // The second rank's computation waits for what follows the meeting.
        let after = vec![vec![], vec![4], vec![0], vec![1], vec![2]];
        assert_eq!(Graph::new(after, vec![vec![2, 3]]).err(), Some(Circle));
    }
}
