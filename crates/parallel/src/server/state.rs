//! What is saved of servers: their optimizers' state, fetched by one worker and given back.
//!
//! The weights are not part of it: workers that have met hold those of all servers.

use super::rows::{Holdings, tensor_len};
use super::serve::send;
use super::{Ask, Client, Request, Tag};
use crate::replica::Replica;
use crate::words;
use lockstep_comm::CommError;
use lockstep_optim::Slot;

/// Some of what a server keeps.
pub struct Kept<'a> {
    /// What it is called.
    pub name: String,
    /// How many elements all of it has, over all servers.
    pub len: usize,
    /// The first element of this part.
    pub first: usize,
    /// The part, to save or to fill in.
    pub values: &'a mut [f32],
}

impl Replica {
    /// Fetches what all servers keep besides weights; `kinds` are those of their optimizer. One
    /// worker does so while no other is at work.
    pub fn fetch_kept<E: From<CommError>>(
        &mut self,
        kinds: &[&str],
        mut visit: impl FnMut(Kept<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        for server in 0..self.client.as_ref().map_or(0, Client::num_servers) {
            let slots = self.slots_of_server(server);
            let Some(client) = &mut self.client else { break };
            let (count, state) = client.converse(server, |client, rank| {
                client.ask(rank, client.request(Ask::ReadState))?;
                let answer = client.answer(rank)?;
                let mut state = Vec::new();
                for (slot, _) in slots.iter().flat_map(|slot| kinds.iter().map(move |_| slot)) {
                    let mut values = vec![0.0; slot.range.len()];
                    client.comm.recv(&mut values, rank, Tag::State as u64)?;
                    state.push(values);
                }
                Ok((answer, (answer.number, state)))
            })?;
            let name = format!("server.{server}.updates");
            visit(Kept { name, len: 4, first: 0, values: &mut words::of(count) })?;
            let named = slots.iter().flat_map(|slot| kinds.iter().map(move |kind| (slot, kind)));
            for (((slot, len), kind), mut values) in named.zip(state) {
                let (name, first) = (format!("{}.{kind}", slot.name), slot.first);
                visit(Kept { name, len: *len, first, values: &mut values })?;
            }
        }
        Ok(())
    }

    /// Gives servers back what `fill` fills in, after so many steps.
    pub fn give_kept<E: From<CommError>>(
        &mut self,
        num_steps: u64,
        kinds: &[&str],
        mut fill: impl FnMut(Kept<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        for server in 0..self.client.as_ref().map_or(0, Client::num_servers) {
            let slots = self.slots_of_server(server);
            let mut count = [0.0; 4];
            let name = format!("server.{server}.updates");
            fill(Kept { name, len: 4, first: 0, values: &mut count })?;
            let mut state = Vec::new();
            for ((slot, len), kind) in
                slots.iter().flat_map(|slot| kinds.iter().map(move |kind| (slot, kind)))
            {
                let mut values = vec![0.0; slot.range.len()];
                let (name, first) = (format!("{}.{kind}", slot.name), slot.first);
                fill(Kept { name, len: *len, first, values: &mut values })?;
                state.push(values);
            }
            let Some(client) = &mut self.client else { break };
            client.converse(server, |client, rank| {
                let (step, number) = (num_steps, words::bits(count));
                client.ask(rank, Request { step, number, ..client.request(Ask::LoadState) })?;
                send(&client.comm, rank, Tag::State, &state)?;
                Ok((client.answer(rank)?, ()))
            })?;
        }
        Ok(())
    }

    /// What the optimizer of a server steps, each with the length of its tensor.
    fn slots_of_server(&self, server: usize) -> Vec<(Slot, usize)> {
        let Self { client: Some(client), blueprint, .. } = self else { return Vec::new() };
        let rows = client.rows.as_ref().map(|rows| rows.table.clone());
        let holdings = Holdings { ranges: client.ranges.clone(), rows };
        let with_len = |slot: Slot| {
            let len = tensor_len(blueprint, &slot);
            (slot, len)
        };
        holdings.slots(blueprint, server).into_iter().map(with_len).collect()
    }
}
