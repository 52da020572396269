//! Checkpoint state of servers: optimizer state, fetched and restored by one worker.
//!
//! Weights are not part of it: synchronized workers hold those of all servers.

use super::row_table::{ShardLayout, tensor_len};
use super::server_loop::send;
use super::{Client, Request, RequestKind, Tag};
use crate::replica::Replica;
use crate::u64_as_f32;
use lockstep_comm::CommError;
use lockstep_optim::Slot;
use lockstep_schedule::step::ServerCall;

/// A piece of a server's state.
pub struct ServerStatePiece<'a> {
    /// Tensor name.
    pub name: String,
    /// Elements of the whole tensor, over all servers.
    pub len: usize,
    /// Index of the first element of this piece.
    pub first: usize,
    /// Elements, to save or to restore.
    pub values: &'a mut [f32],
}

impl Replica {
    /// Fetches the optimizer state that other ranks hold for the workers, on the first worker while
    /// no other is active; `state_names` are those of the optimizer.
    pub fn fetch_remote_state<E: From<CommError>>(
        &mut self,
        state_names: &[&str],
        mut visit: impl FnMut(ServerStatePiece<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        if self.groups.rank() > 0 {
            return Ok(());
        }
        for server in 0..self.client.as_ref().map_or(0, Client::num_servers) {
            let slots = self.slots_of_server(server);
            let Some(client) = &mut self.client else { break };
            let call = Some(ServerCall::State);
            let (count, state) = client.with_failover(server, call, |client, rank| {
                client.send_request(rank, client.request(RequestKind::ReadState))?;
                let reply = client.recv_reply(rank)?;
                let mut state = Vec::new();
                for (slot, _) in slots.iter().flat_map(|slot| state_names.iter().map(move |_| slot))
                {
                    let mut values = vec![0.0; slot.range.len()];
                    client.recv(&mut values, rank, Tag::State)?;
                    state.push(values);
                }
                Ok((reply, (reply.number, state)))
            })?;
            let name = format!("server.{server}.updates");
            visit(ServerStatePiece {
                name,
                len: 4,
                first: 0,
                values: &mut u64_as_f32::encode(count),
            })?;
            let named =
                slots.iter().flat_map(|slot| state_names.iter().map(move |kind| (slot, kind)));
            for (((slot, len), kind), mut values) in named.zip(state) {
                let (name, first) = (format!("{}.{kind}", slot.name), slot.first);
                visit(ServerStatePiece { name, len: *len, first, values: &mut values })?;
            }
        }
        Ok(())
    }

    /// Restores the servers' state from `fill`, after `num_steps` steps.
    pub(super) fn restore_remote_state<E: From<CommError>>(
        &mut self,
        num_steps: u64,
        state_names: &[&str],
        mut fill: impl FnMut(ServerStatePiece<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        for server in 0..self.client.as_ref().map_or(0, Client::num_servers) {
            let slots = self.slots_of_server(server);
            let mut count = [0.0; 4];
            let name = format!("server.{server}.updates");
            fill(ServerStatePiece { name, len: 4, first: 0, values: &mut count })?;
            let mut state = Vec::new();
            for ((slot, len), kind) in
                slots.iter().flat_map(|slot| state_names.iter().map(move |kind| (slot, kind)))
            {
                let mut values = vec![0.0; slot.range.len()];
                let (name, first) = (format!("{}.{kind}", slot.name), slot.first);
                fill(ServerStatePiece { name, len: *len, first, values: &mut values })?;
                state.push(values);
            }
            let Some(client) = &mut self.client else { break };
            client.with_failover(server, None, |client, rank| {
                let (step, number) = (num_steps, u64_as_f32::decode(count));
                client.send_request(
                    rank,
                    Request { step, number, ..client.request(RequestKind::LoadState) },
                )?;
                send(&client.comm, rank, Tag::State, &state)?;
                Ok((client.recv_reply(rank)?, ()))
            })?;
        }
        Ok(())
    }

    /// Optimizer slots of a server, each with the length of its tensor.
    fn slots_of_server(&self, server: usize) -> Vec<(Slot, usize)> {
        let Self { client: Some(client), blueprint, .. } = self else { return Vec::new() };
        let rows = client.rows.as_ref().map(|rows| rows.table.clone());
        let layout = ShardLayout { ranges: client.ranges.clone(), rows };
        let with_len = |slot: Slot| {
            let len = tensor_len(blueprint, &slot);
            (slot, len)
        };
        layout.slots(blueprint, server).into_iter().map(with_len).collect()
    }
}
