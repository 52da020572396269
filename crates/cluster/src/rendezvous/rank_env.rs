//! Rank, world size and rendezvous address of a worker, from the environment.

use std::net::IpAddr;

use lockstep_mesh::Rank;
use lockstep_platform::World;

use super::RendezvousError;
use super::error::Side;
use lockstep_auth::ticket::Ticket;

/// Rank, world size, rendezvous address and credentials of a worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RankEnv {
    /// This rank.
    pub rank: Rank,
    /// World size.
    pub num_ranks: usize,
    /// Rendezvous address: `host:port`.
    pub master: String,
    /// Whether a standalone host listens there; otherwise rank 0 does.
    pub has_standalone_host: bool,
    /// Credentials of the run.
    pub ticket: Ticket,
}

/// Environment variable with the address of a standalone rendezvous host.
pub const RENDEZVOUS_ADDR: &str = "LOCKSTEP_RENDEZVOUS";

impl RankEnv {
    /// Rank of a run whose rank 0 listens at `master`.
    pub fn new(rank: Rank, num_ranks: usize, master: &str, ticket: &Ticket) -> Self {
        let (master, ticket) = (master.to_owned(), ticket.clone());
        Self { rank, num_ranks, master, has_standalone_host: false, ticket }
    }

    /// Reads `RANK`, `WORLD_SIZE`, `MASTER_ADDR` and `MASTER_PORT`, which launchers set, or
    /// `LOCKSTEP_RENDEZVOUS` instead of the last two, and the [ticket](Ticket::from_env) of the
    /// run. A world of one rank needs no ticket.
    pub fn from_env(world: &World) -> Result<Self, RendezvousError> {
        let ticket = |num_ranks| match num_ranks {
            1 => Ok(Ticket::new(world)),
            _ => Ticket::from_env(world),
        };
        Self::from_variables(|name| world.host().env(name), ticket)
    }

    /// Listening side at the rendezvous address.
    pub(super) fn host(&self) -> Side {
        if self.has_standalone_host { Side::RendezvousHost } else { Side::Rank(Rank(0)) }
    }

    fn from_variables(
        get: impl Fn(&str) -> Option<String>,
        ticket: impl Fn(usize) -> Result<Ticket, String>,
    ) -> Result<Self, RendezvousError> {
        let get = |name: &str| get(name).filter(|value| !value.trim().is_empty());
        let mut problems = Vec::new();
        let rank = number(get("RANK"), "RANK", "0", &mut problems);
        let num_ranks = number(get("WORLD_SIZE"), "WORLD_SIZE", "1", &mut problems);
        let hosted_at = get(RENDEZVOUS_ADDR);
        let has_standalone_host = hosted_at.is_some();
        let master = match hosted_at {
            Some(addr) => addr.trim().to_owned(),
            None => master(&get, &mut problems),
        };
        if problems.is_empty() && rank >= num_ranks {
            let rule = "ranks count from 0";
            problems.push(format!("RANK = {rank} is not below WORLD_SIZE = {num_ranks}: {rule}"));
        }
        match ticket(num_ranks) {
            Ok(ticket) if problems.is_empty() => {
                return Ok(Self {
                    rank: Rank(rank),
                    num_ranks,
                    master,
                    has_standalone_host,
                    ticket,
                });
            }
            Ok(_) => {}
            Err(problem) => problems.push(problem),
        }
        Err(RendezvousError::Environment { problems: problems.join("; ") })
    }
}

/// Parses a numeric variable; adds a problem if that fails.
fn number(value: Option<String>, name: &str, example: &str, problems: &mut Vec<String>) -> usize {
    let parsed = value.as_deref().and_then(|value| value.trim().parse().ok());
    parsed.unwrap_or_else(|| {
        problems.push(match value {
            None => format!("{name} is not set; try {example}"),
            Some(value) => format!("{name} = {value} is not a number; try {example}"),
        });
        0
    })
}

/// Address of rank 0.
fn master(get: &impl Fn(&str) -> Option<String>, problems: &mut Vec<String>) -> String {
    let num_problems = problems.len();
    let port = number(get("MASTER_PORT"), "MASTER_PORT", "29500", problems);
    if problems.len() == num_problems && !(1..=65_535).contains(&port) {
        problems.push(format!("MASTER_PORT = {port} is no port; try 29500"));
    }
    let host = get("MASTER_ADDR");
    if host.is_none() {
        problems.push("MASTER_ADDR is not set; try 127.0.0.1".to_owned());
    }
    with_port(host.unwrap_or_default().trim(), port)
}

/// `host:port`, with brackets around an IPv6 address.
fn with_port(host: &str, port: usize) -> String {
    if host.contains(':') && !host.starts_with('[') {
        return format!("[{host}]:{port}");
    }
    format!("{host}:{port}")
}

/// Addresses that rank 0 tries to bind, in order. A name may resolve to another address on its own
/// machine, so only numeric addresses are bound as given. A machine may also be reached by an
/// address that it does not have, behind NAT. Loopback stays loopback, to keep other hosts out.
pub(super) fn listening_addrs(master: &str) -> Vec<String> {
    let (host, port) = master.rsplit_once(':').unwrap_or((master, "0"));
    let everywhere = [format!("[::]:{port}"), format!("0.0.0.0:{port}")];
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    if is_loopback(host) {
        vec![master.to_owned()]
    } else if bare.parse::<IpAddr>().is_ok() {
        [vec![master.to_owned()], everywhere.to_vec()].concat()
    } else {
        everywhere.to_vec()
    }
}

/// Addresses to bind for a rank that reached rank 0 from the address `local`, and the host name for
/// the other ranks if it differs from the bound address.
///
/// Other ranks use the address that leads to rank 0. A rank on the machine of rank 0 may have used
/// loopback although others are remote; they reach it at the host of rank 0.
pub(super) fn own_addrs(master: &str, local: &str) -> (Vec<String>, Option<String>) {
    let host_of = |addr: &str| addr.rsplit_once(':').map_or("", |(host, _)| host).to_owned();
    let host = host_of(local);
    let is_local = is_loopback(&host);
    if is_local && !is_loopback(&host_of(master)) {
        return (vec!["[::]:0".to_owned(), "0.0.0.0:0".to_owned()], Some(host_of(master)));
    }
    (vec![format!("{host}:0")], None)
}

fn is_loopback(host: &str) -> bool {
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost" || bare.parse().is_ok_and(|addr: IpAddr| addr.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockstep_auth::ticket::Secret;

    fn ticket() -> Ticket {
        let secret = Secret::parse(&"07".repeat(32)).unwrap();
        Ticket { secret, run: String::new() }
    }

    fn rank_env(variables: &[(&str, &str)]) -> Result<RankEnv, String> {
        let get = |name: &str| {
            let found = variables.iter().find(|(key, _)| *key == name);
            found.map(|(_, value)| (*value).to_owned())
        };
        RankEnv::from_variables(get, |_| Ok(ticket())).map_err(|error| error.to_string())
    }

    #[test]
    fn a_rank_is_read_from_the_environment() {
        let mut variables = [
            ("RANK", "2"),
            ("WORLD_SIZE", "4"),
            ("MASTER_ADDR", "node0"),
            ("MASTER_PORT", "29500"),
        ];
        assert_eq!(rank_env(&variables), Ok(RankEnv::new(Rank(2), 4, "node0:29500", &ticket())));
        variables[2].1 = "fd00::1";
        assert_eq!(rank_env(&variables).unwrap().master, "[fd00::1]:29500");
    }

    #[test]
    fn all_problems_are_reported_together() {
        let text = rank_env(&[("RANK", "two"), ("WORLD_SIZE", "4")]).unwrap_err();
        assert_eq!(
            text,
            "the environment does not describe this rank: RANK = two is not a number; try 0; \
             MASTER_PORT is not set; try 29500; MASTER_ADDR is not set; try 127.0.0.1"
        );
        let rest = [("MASTER_ADDR", "a"), ("MASTER_PORT", "70000")];
        let text =
            rank_env(&[&[("RANK", "4"), ("WORLD_SIZE", "4")], &rest[..]].concat()).unwrap_err();
        assert!(text.contains("MASTER_PORT = 70000 is no port"), "{text}");
        let rest = [("MASTER_ADDR", "a"), ("MASTER_PORT", "7")];
        let text =
            rank_env(&[&[("RANK", "4"), ("WORLD_SIZE", "4")], &rest[..]].concat()).unwrap_err();
        assert!(text.contains("RANK = 4 is not below WORLD_SIZE = 4"), "{text}");
    }

    #[test]
    fn a_standalone_host_replaces_rank_0() {
        let hosted = [("RANK", "0"), ("WORLD_SIZE", "2"), (RENDEZVOUS_ADDR, " host:1 ")];
        let found = rank_env(&hosted).unwrap();
        assert_eq!((found.master.as_str(), found.has_standalone_host), ("host:1", true));
    }

    #[test]
    fn a_missing_secret_is_reported() {
        let get = |name: &str| match name {
            "RANK" => Some("0".to_owned()),
            "WORLD_SIZE" | "MASTER_PORT" => Some("2".to_owned()),
            _ => Some("127.0.0.1".to_owned()),
        };
        let error = RankEnv::from_variables(get, |_| Err("no secret".to_owned())).unwrap_err();
        assert_eq!(error.to_string(), "the environment does not describe this rank: no secret");
    }

    #[test]
    fn loopback_is_never_opened_to_others() {
        assert_eq!(listening_addrs("127.0.0.1:5"), ["127.0.0.1:5"]);
        assert_eq!(listening_addrs("localhost:5"), ["localhost:5"]);
        assert_eq!(listening_addrs("[::1]:5"), ["[::1]:5"]);
        assert_eq!(listening_addrs("10.0.0.1:5"), ["10.0.0.1:5", "[::]:5", "0.0.0.0:5"]);
        assert_eq!(listening_addrs("node0:5"), ["[::]:5", "0.0.0.0:5"]);
    }

    #[test]
    fn a_rank_on_the_machine_of_rank_0_uses_its_host_name() {
        let own = |master, local| own_addrs(master, local);
        let everywhere = vec!["[::]:0".to_owned(), "0.0.0.0:0".to_owned()];
        assert_eq!(own("127.0.0.1:5", "127.0.0.1:777"), (vec!["127.0.0.1:0".to_owned()], None));
        assert_eq!(own("localhost:5", "[::1]:777"), (vec!["[::1]:0".to_owned()], None));
        assert_eq!(own("node0:5", "10.0.0.7:777"), (vec!["10.0.0.7:0".to_owned()], None));
        assert_eq!(own("node0:5", "127.0.0.1:777"), (everywhere, Some("node0".to_owned())));
    }
}
