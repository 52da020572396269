//! Workers that an MPI launcher started.
//!
//! `mpirun` tells a process its rank and lets it reach the others; no address and no secret has to
//! be set. Rank 0 listens at a free port and sends the address and a new secret through MPI, which
//! only the processes of the launcher can receive. Then ranks join as under any launcher.

use crate::ClusterError;
use crate::join::{JoinedWorker, open_comm, settings};
use crate::rendezvous::{self, Log, RankEnv, Secret, Settings, Ticket};
use lockstep_config::{Recipe, TransportChoice};
use lockstep_mesh::Rank;
use lockstep_mpi::{Launched, Process};
use lockstep_platform::{Listener, World};

/// Bytes of an invitation: 64 digits of the secret, a port, and a host name of at most 255.
const INVITATION_BYTES: usize = 512;

/// Where rank 0 listens, and the secret of the run.
struct Invitation {
    secret: Secret,
    port: u16,
    host: String,
}

impl Invitation {
    fn to_bytes(&self) -> [u8; INVITATION_BYTES] {
        let text = format!("{} {} {}", self.secret.to_hex(), self.port, self.host);
        let mut bytes = [0; INVITATION_BYTES];
        bytes[..text.len()].copy_from_slice(text.as_bytes());
        bytes
    }

    fn parse(bytes: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(bytes).ok()?.trim_end_matches('\0');
        let mut fields = text.split(' ');
        let (secret, port) = (Secret::parse(fields.next()?)?, fields.next()?.parse().ok()?);
        let host = fields.next().filter(|host| !host.is_empty())?.to_owned();
        fields.next().is_none().then_some(Self { secret, port, host })
    }
}

/// Joins as a worker process of an MPI launcher and waits for the other workers. `log` receives
/// rejected clients and the ranks that this one waits for.
pub fn join_mpi_worker(
    recipe: &Recipe,
    world: &World,
    launched: &Launched,
    arena_bytes: usize,
    log: Log,
) -> Result<JoinedWorker, ClusterError> {
    let process = Process::start(world, launched)?;
    let own_host = world.host().name();
    let listener = (process.rank() == 0).then(|| listen(world)).transpose()?;
    let mut bytes = [0; INVITATION_BYTES];
    if let Some(listener) = &listener {
        let addr = listener.local_addr();
        let port = addr.rsplit_once(':').and_then(|(_, port)| port.parse().ok());
        let port = port.expect("an address ends with its port");
        let (secret, host) = (Secret::new(world), own_host.clone());
        bytes = Invitation { secret, port, host }.to_bytes();
    }
    process.broadcast(&mut bytes)?;
    let Invitation { secret, port, host } =
        Invitation::parse(&bytes).ok_or(ClusterError::MpiInvitation)?;
    let host = if host == own_host { "127.0.0.1".to_owned() } else { host };
    let ticket = Ticket { secret, run: String::new() };
    let (rank, num_ranks) = (Rank(process.rank()), process.num_ranks());
    let rank_env = RankEnv::new(rank, num_ranks, &format!("{host}:{port}"), &ticket);
    let settings = Settings { log: Some(log), ..settings(recipe) };
    let joined = match listener {
        Some(listener) => rendezvous::join_as_first(world, listener, &rank_env, &settings)?,
        None => rendezvous::join(world, &rank_env, &settings)?,
    };
    let moves_data = recipe.run.transport == TransportChoice::Mpi;
    let for_data = moves_data.then(|| process.clone());
    let worker = open_comm(recipe, world, joined, arena_bytes, for_data)?;
    Ok(JoinedWorker { mpi: Some(process), ..worker })
}

/// Listens at any address of this host, since other hosts may connect.
fn listen(world: &World) -> Result<Box<dyn Listener>, ClusterError> {
    let net = world.net();
    Ok(net.listen("[::]:0").or_else(|_| net.listen("0.0.0.0:0"))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_invitation_is_read_as_it_was_written_and_other_bytes_are_none() {
        let secret = Secret::parse(&"5a".repeat(32)).expect("64 digits");
        let host = "node-17.cluster.example.org".to_owned();
        let bytes = Invitation { secret, port: 4711, host: host.clone() }.to_bytes();
        let found = Invitation::parse(&bytes).expect("an invitation");
        assert_eq!((found.secret, found.port, found.host), (secret, 4711, host));
        for wrong in [&[0; 8][..], b"5a 1 host", &bytes[..64], &[0xff; INVITATION_BYTES]] {
            assert!(Invitation::parse(wrong).is_none());
        }
    }
}
