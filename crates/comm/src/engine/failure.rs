//! Failure of a call: its record, and the agreement on a verdict.

use super::{Call, Run};
use crate::error::{CommError, Context, Interruption};
use crate::signature::Signature;

impl Call<'_> {
    /// Writes the record of the call, unless that was done.
    #[inline]
    pub(super) fn begin(&self) {
        if let Some(record) = self.record {
            record.begin();
        }
    }
}

impl Run<'_> {
    /// Agrees with all ranks on a verdict about an interruption, and returns it as an error.
    #[cold]
    pub(super) fn failed(&self, why: Interruption) -> CommError {
        let why = match why {
            // A rank that made a different call may have left because of it.
            Interruption::Deadline { .. } | Interruption::Lost { .. } => {
                self.first_mismatch().unwrap_or(why)
            }
            _ => why,
        };
        // An earlier call of a peer is compared with this rank's call of the same number.
        let (number, call) = match why {
            Interruption::Mismatch { number: Some(number), .. } if number < self.number => {
                let then = self.history.iter().find(|(earlier, _)| *earlier == number);
                (number, then.map_or(self.call.signature, |(_, call)| *call))
            }
            _ => (self.number, self.call.signature),
        };
        let context = Context {
            epoch: self.endpoint.epoch(),
            rank: self.endpoint.rank(),
            call,
            group: self.membership.name.clone(),
            number,
            label: self.call.label,
            timeout: self.call.timeout,
            done_bytes: self.moved.bytes() + self.partial_bytes,
            expected_bytes: self.call.prepared.traffic.bytes(),
        };
        let verdict = self.endpoint.agree_on_verdict(self.call.channel, context.report(why));
        if let Some(shared) = self.shared.filter(|_| self.call.prepared.facts.uses_memory) {
            // The caller gets its buffers back.
            shared.withdraw(self.membership.id, self.number, &self.membership.ranks);
        }
        CommError::Failed(Box::new(verdict))
    }

    /// Finds a rank of this host that is in a different call, which explains the interruption.
    fn first_mismatch(&self) -> Option<Interruption> {
        let shared = self.shared?;
        let (group, number) = (self.membership.id, self.number);
        let mut local = self.membership.ranks.iter().filter(|&&peer| shared.sees(peer));
        local.find_map(|&peer| {
            let descriptor = shared.descriptor_in(peer, group, number)?;
            let theirs = Signature::unpack(descriptor.signature);
            let mismatch = Interruption::Mismatch { peer, theirs, number: None };
            (theirs != self.call.signature).then_some(mismatch)
        })
    }
}
