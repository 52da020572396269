//! Rank, world size and rendezvous address of a worker, from the environment.
//!
//! Launchers set `RANK`, `WORLD_SIZE`, `MASTER_ADDR` and `MASTER_PORT`. Under torchrun (PyTorch's
//! elastic launcher), the agent of the first host serves its own key-value store at `MASTER_PORT`
//! and says so by `TORCHELASTIC_USE_AGENT_STORE=True`; then rank 0 listens one port above it.
//! `LOCKSTEP_MASTER_PORT` names another port under every launcher.
//!
//! A run on one host needs no secret in the environment: its ranks share one of their user.

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
    /// Variable that the port comes from.
    pub port: MasterPort,
    /// Whether a standalone host listens there; otherwise rank 0 does.
    pub has_standalone_host: bool,
    /// Credentials of the run.
    pub ticket: Ticket,
}

/// Environment variable with the address of a standalone rendezvous host.
pub const RENDEZVOUS_ADDR: &str = "LOCKSTEP_RENDEZVOUS";

/// Environment variable with the port of rank 0, over `MASTER_PORT`.
pub const MASTER_PORT: &str = "LOCKSTEP_MASTER_PORT";

/// Environment variable with the process id of the `lockstep` launcher.
pub const LAUNCHER: &str = "LOCKSTEP_LAUNCHER";

/// Longest part of torchrun's run identifier in the name of a run, in characters.
const MAX_RUN_ID_CHARS: usize = 64;

/// Origin of the port of rank 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MasterPort {
    /// `MASTER_PORT`.
    Master,
    /// The port next to `MASTER_PORT`, which torchrun's agent holds.
    NextToAgent {
        /// `MASTER_PORT`.
        agent: u16,
    },
    /// `LOCKSTEP_MASTER_PORT`.
    Own,
}

impl MasterPort {
    /// Variable to set if the port is taken.
    pub(super) fn fix(self) -> String {
        match self {
            Self::Master => {
                format!("set MASTER_PORT or {MASTER_PORT} to a free port, alike on all ranks")
            }
            Self::Own => format!("set {MASTER_PORT} to a free port, alike on all ranks"),
            Self::NextToAgent { agent } => format!(
                "torchrun's agent holds MASTER_PORT = {agent}, so rank 0 listens next to it; set \
                 {MASTER_PORT} to a free port before torchrun, on all hosts"
            ),
        }
    }
}

impl RankEnv {
    /// Rank of a run whose rank 0 listens at `master`.
    pub fn new(rank: Rank, num_ranks: usize, master: &str, ticket: &Ticket) -> Self {
        let (master, ticket) = (master.to_owned(), ticket.clone());
        let (port, has_standalone_host) = (MasterPort::Master, false);
        Self { rank, num_ranks, master, port, has_standalone_host, ticket }
    }

    /// Reads `RANK`, `WORLD_SIZE`, `MASTER_ADDR` and `MASTER_PORT`, which launchers set, or
    /// `LOCKSTEP_RENDEZVOUS` instead of the last two, and the [ticket](Ticket::from_env) of the
    /// run. A world of one rank needs no ticket, and ranks on one host have a [ticket of their
    /// user](Ticket::of_user) unless the environment has another.
    pub fn from_env(world: &World) -> Result<Self, RendezvousError> {
        let ticket = |num_ranks, local_run: Option<&str>| match (num_ranks, local_run) {
            (1, _) => Ok(Ticket::new(world)),
            (_, Some(run)) if !Ticket::is_in_env(world) => Ticket::of_user(world, run),
            _ => Ticket::from_env(world),
        };
        Self::from_variables(|name| world.host().env(name), ticket)
    }

    /// Listening side at the rendezvous address.
    pub(super) fn host(&self) -> Side {
        if self.has_standalone_host { Side::RendezvousHost } else { Side::Rank(Rank(0)) }
    }

    /// Reads the variables; `ticket` gets the world size and, if all ranks are on this host, the
    /// name of the run.
    fn from_variables(
        get: impl Fn(&str) -> Option<String>,
        ticket: impl Fn(usize, Option<&str>) -> Result<Ticket, String>,
    ) -> Result<Self, RendezvousError> {
        let get = |name: &str| get(name).filter(|value| !value.trim().is_empty());
        let mut problems = Vec::new();
        let rank = number(get("RANK"), "RANK", "0", &mut problems);
        let num_ranks = number(get("WORLD_SIZE"), "WORLD_SIZE", "1", &mut problems);
        let hosted_at = get(RENDEZVOUS_ADDR);
        let has_standalone_host = hosted_at.is_some();
        let (master, port) = match hosted_at {
            Some(addr) => (addr.trim().to_owned(), MasterPort::Master),
            None => master(&get, &mut problems),
        };
        if problems.is_empty() && rank >= num_ranks {
            let rule = "ranks count from 0";
            problems.push(format!("RANK = {rank} is not below WORLD_SIZE = {num_ranks}: {rule}"));
        }
        let is_local = !has_standalone_host && is_on_one_host(&get, num_ranks, &master);
        let local_run = is_local.then(|| run_name(&get, &master));
        match ticket(num_ranks, local_run.as_deref()) {
            Ok(ticket) if problems.is_empty() => {
                let rank = Rank(rank);
                return Ok(Self { rank, num_ranks, master, port, has_standalone_host, ticket });
            }
            Ok(_) => {}
            Err(problem) => problems.push(problem),
        }
        Err(RendezvousError::Environment { problems: problems.join("; ") })
    }
}

/// Whether the launcher says that all ranks are on this host, or the master address is reachable
/// on this host only.
fn is_on_one_host(get: &impl Fn(&str) -> Option<String>, num_ranks: usize, master: &str) -> bool {
    match get("LOCAL_WORLD_SIZE") {
        Some(num_local) => num_local.trim().parse() == Ok(num_ranks),
        None => is_loopback(master.rsplit_once(':').map_or(master, |(host, _)| host)),
    }
}

/// Name of a run of this host, which keeps it apart from other runs of the user.
fn run_name(get: &impl Fn(&str) -> Option<String>, master: &str) -> String {
    let id = get("TORCHELASTIC_RUN_ID").unwrap_or_default();
    let id: String = id.chars().take(MAX_RUN_ID_CHARS).collect();
    format!("{id}@{master}")
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

/// Address of rank 0, and the variable of its port.
fn master(
    get: &impl Fn(&str) -> Option<String>,
    problems: &mut Vec<String>,
) -> (String, MasterPort) {
    // The launcher of `lockstep` chooses a free port itself, also below another launcher.
    let is_own_launcher = get(LAUNCHER).is_some();
    let own = get(MASTER_PORT).filter(|_| !is_own_launcher);
    let is_held = get("TORCHELASTIC_USE_AGENT_STORE").is_some_and(|value| value.trim() == "True");
    let (port, source) = if own.is_some() {
        (port(own, MASTER_PORT, problems), MasterPort::Own)
    } else {
        let master = port(get("MASTER_PORT"), "MASTER_PORT", problems);
        match master {
            // There is no port above the last one.
            u16::MAX if is_held && !is_own_launcher => {
                (u16::MAX - 1, MasterPort::NextToAgent { agent: master })
            }
            _ if is_held && !is_own_launcher => {
                (master + 1, MasterPort::NextToAgent { agent: master })
            }
            _ => (master, MasterPort::Master),
        }
    };
    let host = get("MASTER_ADDR");
    if host.is_none() {
        problems.push("MASTER_ADDR is not set; try 127.0.0.1".to_owned());
    }
    (with_port(host.unwrap_or_default().trim(), port), source)
}

/// Parses a port; adds a problem if that fails.
fn port(value: Option<String>, name: &str, problems: &mut Vec<String>) -> u16 {
    let num_problems = problems.len();
    let port = number(value, name, "29500", problems);
    match u16::try_from(port) {
        Ok(port @ 1..) => port,
        _ if problems.len() > num_problems => 0,
        _ => {
            problems.push(format!("{name} = {port} is no port; try 29500"));
            0
        }
    }
}

/// `host:port`, with brackets around an IPv6 address.
fn with_port(host: &str, port: u16) -> String {
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
        RankEnv::from_variables(get, |_, _| Ok(ticket())).map_err(|error| error.to_string())
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

    /// Variables that torchrun's agent sets for a worker.
    const TORCHRUN: [(&str, &str); 7] = [
        ("RANK", "1"),
        ("WORLD_SIZE", "4"),
        ("MASTER_ADDR", "node0"),
        ("MASTER_PORT", "29500"),
        ("LOCAL_WORLD_SIZE", "4"),
        ("TORCHELASTIC_RUN_ID", "job-7"),
        ("TORCHELASTIC_USE_AGENT_STORE", "True"),
    ];

    fn torchrun(more: &[(&'static str, &'static str)]) -> Vec<(&'static str, &'static str)> {
        more.iter().chain(&TORCHRUN).copied().collect()
    }

    #[test]
    fn rank_0_listens_next_to_the_port_of_torchruns_agent() {
        let next = |agent| MasterPort::NextToAgent { agent };
        for (more, master, port) in [
            (&[][..], "node0:29501", next(29500)),
            (&[("MASTER_PORT", "65535")], "node0:65534", next(65535)),
            (&[(MASTER_PORT, "777")], "node0:777", MasterPort::Own),
            (&[("TORCHELASTIC_USE_AGENT_STORE", "False")], "node0:29500", MasterPort::Master),
            // Workers of our own launcher that runs below torchrun.
            (&[(LAUNCHER, "1"), (MASTER_PORT, "777")], "node0:29500", MasterPort::Master),
        ] {
            let found = rank_env(&torchrun(more)).unwrap();
            assert_eq!((found.master.as_str(), found.port), (master, port), "{more:?}");
        }
        let text = rank_env(&torchrun(&[(MASTER_PORT, "0")])).unwrap_err();
        assert!(text.ends_with("LOCKSTEP_MASTER_PORT = 0 is no port; try 29500"), "{text}");
        assert!(next(29500).fix().contains("MASTER_PORT = 29500"), "it names the agent's port");
        assert!(next(29500).fix().contains("set LOCKSTEP_MASTER_PORT"), "it names the variable");
    }

    #[test]
    fn a_run_on_one_host_has_a_name_for_the_secret_of_its_user() {
        let local_run = |variables: &[(&str, &str)]| {
            let get = |name: &str| {
                let found = variables.iter().find(|(key, _)| *key == name);
                found.map(|(_, value)| (*value).to_owned())
            };
            let named = std::cell::RefCell::new(None);
            RankEnv::from_variables(get, |_, run| {
                *named.borrow_mut() = run.map(str::to_owned);
                Ok(ticket())
            })
            .unwrap();
            named.into_inner()
        };
        let name = Some("job-7@node0:29501".to_owned());
        assert_eq!(local_run(&torchrun(&[])), name);
        assert_eq!(local_run(&torchrun(&[("LOCAL_WORLD_SIZE", "2")])), None, "several hosts");
        assert_eq!(local_run(&torchrun(&[("LOCAL_WORLD_SIZE", "all")])), None);
        assert_eq!(local_run(&torchrun(&[(RENDEZVOUS_ADDR, "127.0.0.1:1")])), None);
        // Other launchers do not say how many ranks are here.
        let plain = |addr| {
            local_run(&[
                ("RANK", "0"),
                ("WORLD_SIZE", "2"),
                ("MASTER_ADDR", addr),
                ("MASTER_PORT", "5"),
            ])
        };
        assert_eq!(plain("127.0.0.1"), Some("@127.0.0.1:5".to_owned()));
        assert_eq!(plain("::1"), Some("@[::1]:5".to_owned()));
        assert_eq!(plain("node0"), None);
        let long = "x".repeat(1000);
        let get = |name: &str| (name == "TORCHELASTIC_RUN_ID").then(|| long.clone());
        assert_eq!(run_name(&get, "a:1").len(), MAX_RUN_ID_CHARS + 4, "it fits into a hello");
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
        let error = RankEnv::from_variables(get, |_, _| Err("no secret".to_owned())).unwrap_err();
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
