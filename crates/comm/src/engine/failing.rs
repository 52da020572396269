//! What a call writes down when it begins, and says when it fails.

use super::{Call, Run};
use crate::error::{CommError, Context, Interruption};
use crate::signature::Signature;

impl Call<'_> {
    /// Writes down that it begins, unless that was done.
    #[inline]
    pub(super) fn begin(&self) {
        if let Some(flight) = self.flight {
            flight.begin();
        }
    }
}

impl Run<'_> {
    /// The error for an interruption, once all ranks have settled on one.
    #[cold]
    pub(super) fn failed(&self, why: Interruption) -> CommError {
        let why = match why {
            // A rank that made another call may have left after it.
            Interruption::Deadline { .. } | Interruption::Lost { .. } => {
                self.first_mismatch().unwrap_or(why)
            }
            _ => why,
        };
        // What a peer called earlier is held against what this rank called then.
        let (number, call) = match why {
            Interruption::Mismatch { number: Some(number), .. } if number < self.number => {
                let then = self.history.iter().find(|(earlier, _)| *earlier == number);
                (number, then.map_or(self.call.signature, |(_, call)| *call))
            }
            _ => (self.number, self.call.signature),
        };
        let context = Context {
            epoch: self.node.epoch(),
            rank: self.node.rank(),
            call,
            group: self.team.name.clone(),
            number,
            label: self.call.label,
            timeout: self.call.timeout,
            done_bytes: self.moved.bytes() + self.partial_bytes,
            expected_bytes: self.call.plan.traffic.bytes(),
        };
        let verdict = self.node.settle(self.call.lane, context.statement(why));
        CommError::Failed(Box::new(verdict))
    }

    /// A member whose memory is seen and who is in another call than this one: then that is why
    /// nobody came.
    fn first_mismatch(&self) -> Option<Interruption> {
        let shared = self.shared?;
        let (group, number) = (self.team.id, self.number);
        let mut seen = self.team.members.iter().filter(|&&peer| shared.sees(peer));
        seen.find_map(|&peer| {
            let card = shared.card_in(peer, group, number)?;
            let theirs = Signature::from_words(card.signature);
            let mismatch = Interruption::Mismatch { peer, theirs, number: None };
            (theirs != self.call.signature).then_some(mismatch)
        })
    }
}
