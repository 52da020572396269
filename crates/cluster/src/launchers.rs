//! Place of this process among the ranks of a launcher: arguments, or variables of the environment.
//!
//! Launchers say under names of their own which rank a process is. They are looked for in this
//! order, and the first that is found decides:
//!
//! 1. the arguments `--rank`, `--world-size` and `--master`;
//! 2. `RANK`, `WORLD_SIZE`, `MASTER_ADDR` and `MASTER_PORT`, as torchrun and our own launcher set
//!    them;
//! 3. Open MPI, PMI and PMIx ([`lockstep_mpi::launcher`]), whose ranks meet through MPI;
//! 4. Slurm's `srun`: the first host of the step's list is the master, and the job's number gives
//!    the port;
//! 5. an indexed job of Kubernetes: the first pod of the job is the master.
//!
//! The first, fourth and fifth are translated to the variables of the second, which is the only
//! form that the rest of the crate reads. A launcher that started one process only leaves the
//! workers to us, as batch systems do for a script.

use lockstep_auth::ticket::RUN;
use lockstep_platform::{World, with_env};

/// Arguments that give the place of a rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RankArguments {
    /// This rank.
    pub rank: usize,
    /// World size.
    pub world_size: usize,
    /// Address of rank 0, `host:port`.
    pub master: String,
}

/// Arguments that do not describe a rank.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RankArgumentsError {
    /// The rank is not one of the world.
    #[error("--rank {rank} is not below --world-size {world_size}; ranks count from 0")]
    Rank {
        /// Given rank.
        rank: usize,
        /// Given world size.
        world_size: usize,
    },
    /// The address has no port.
    #[error("--master {master} is no address of rank 0; try --master HOST:29500")]
    Master {
        /// Given address.
        master: String,
    },
}

/// Most hosts that the list of a step may name.
const MAX_HOSTS: usize = 1 << 16;

/// Port of rank 0 in a pod, whose network no other job shares.
const POD_PORT: u16 = 29500;

/// First port of Slurm jobs, and how many there are. They end below the ports that Linux gives to
/// clients.
const SLURM_PORTS: [u64; 2] = [15_000, 15_000];

/// Variables of the common form, with their values.
type Variables = Vec<(String, String)>;

/// The world of a rank whose place these arguments or a batch system give, in the common variables;
/// any other world stays as it is.
pub fn translate(
    world: &World,
    arguments: Option<&RankArguments>,
) -> Result<World, RankArgumentsError> {
    let get = |name: &str| world.host().env(name);
    let variables = match arguments {
        Some(arguments) => Some(of_arguments(arguments)?),
        None => of_batch_system(get),
    };
    Ok(variables.map_or_else(|| world.clone(), |variables| with_env(world, variables)))
}

fn of_arguments(arguments: &RankArguments) -> Result<Variables, RankArgumentsError> {
    let RankArguments { rank, world_size, ref master } = *arguments;
    if rank >= world_size {
        return Err(RankArgumentsError::Rank { rank, world_size });
    }
    let parts = master.rsplit_once(':').filter(|(host, _)| !host.is_empty());
    let parts = parts.filter(|(_, port)| port.parse::<u16>().is_ok_and(|port| port > 0));
    let Some((host, port)) = parts else {
        return Err(RankArgumentsError::Master { master: master.clone() });
    };
    Ok(common(rank, world_size, host, port))
}

/// The variables that every rank has.
fn common(rank: usize, world_size: usize, host: &str, port: &str) -> Variables {
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let pairs = [
        ("RANK", rank.to_string()),
        ("WORLD_SIZE", world_size.to_string()),
        ("MASTER_ADDR", host.to_owned()),
        ("MASTER_PORT", port.to_owned()),
    ];
    pairs.map(|(name, value)| (name.to_owned(), value)).into()
}

/// Variables of a rank that Slurm or Kubernetes started, unless an earlier launcher did.
fn of_batch_system(get: impl Fn(&str) -> Option<String>) -> Option<Variables> {
    let is_set = |name: &str| get(name).is_some_and(|value| !value.trim().is_empty());
    if is_set("RANK") || lockstep_mpi::launcher::detect(&get).is_some_and(|at| at.num_ranks > 1) {
        return None;
    }
    of_slurm(&get).or_else(|| of_kubernetes(&get))
}

/// Variables of a task of `srun`. A batch script is a task as well, but no step of `srun`.
fn of_slurm(get: &impl Fn(&str) -> Option<String>) -> Option<Variables> {
    let number = |name: &str| get(name)?.trim().parse::<usize>().ok();
    let (rank, world_size) = (number("SLURM_PROCID")?, number("SLURM_STEP_NUM_TASKS")?);
    if world_size < 2 || rank >= world_size {
        return None;
    }
    let hosts = expand_hosts(get("SLURM_STEP_NODELIST")?.trim())?;
    let (job, step) = (number("SLURM_JOB_ID")? as u64, number("SLURM_STEP_ID").unwrap_or(0) as u64);
    let [first, num_ports] = SLURM_PORTS;
    let port = first + job.wrapping_mul(61).wrapping_add(step) % num_ports;
    let mut variables = common(rank, world_size, hosts.first()?, &port.to_string());
    if hosts.len() == 1 {
        // Ranks of one host share a secret of their user.
        variables.push(("LOCAL_WORLD_SIZE".to_owned(), world_size.to_string()));
    }
    if get(RUN).is_none() {
        variables.push((RUN.to_owned(), format!("slurm-{job}.{step}")));
    }
    Some(variables)
}

/// Variables of a pod of an indexed job. The job says its index; its author says the world size.
fn of_kubernetes(get: &impl Fn(&str) -> Option<String>) -> Option<Variables> {
    let number = |name: &str| get(name)?.trim().parse::<usize>().ok();
    let (rank, world_size) = (number("JOB_COMPLETION_INDEX")?, number("WORLD_SIZE")?);
    if world_size < 2 || rank >= world_size {
        return None;
    }
    let given = |name: &str| get(name).filter(|value| !value.trim().is_empty());
    let port = given("MASTER_PORT").unwrap_or_else(|| POD_PORT.to_string());
    let host = match given("MASTER_ADDR") {
        Some(host) => host,
        None => first_pod(&given("HOSTNAME")?, rank, given("LOCKSTEP_SERVICE").as_deref())?,
    };
    Some(common(rank, world_size, host.trim(), port.trim()))
}

/// Name of the pod with index 0 in the headless service of a job: a pod is called after its job and
/// its index.
fn first_pod(own: &str, index: usize, service: Option<&str>) -> Option<String> {
    let (own, domain) =
        own.trim().split_once('.').map_or((own.trim(), None), |(a, b)| (a, Some(b)));
    let job = own.strip_suffix(&index.to_string())?.strip_suffix('-')?;
    let domain = service.map(str::trim).or(domain);
    Some(domain.map_or_else(|| format!("{job}-0"), |domain| format!("{job}-0.{domain}")))
}

/// Hosts of a list as Slurm writes it, such as `login,node[01-03,7],rack[1-2]n[0-1]`; `None` if it
/// is not well formed or too long.
pub fn expand_hosts(list: &str) -> Option<Vec<String>> {
    let mut hosts = Vec::new();
    for entry in split_outside_brackets(list)? {
        hosts.extend(expand_entry(entry)?);
        if hosts.len() > MAX_HOSTS {
            return None;
        }
    }
    (!hosts.is_empty()).then_some(hosts)
}

/// Entries between commas that are not in brackets.
fn split_outside_brackets(list: &str) -> Option<Vec<&str>> {
    let (mut entries, mut start, mut is_inside) = (Vec::new(), 0, false);
    for (at, letter) in list.char_indices() {
        match letter {
            '[' | ']' if is_inside == (letter == '[') => return None,
            '[' | ']' => is_inside = letter == '[',
            ',' if !is_inside => {
                entries.push(&list[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    entries.push(&list[start..]);
    let is_sound = !is_inside && entries.iter().all(|entry| !entry.is_empty());
    is_sound.then_some(entries)
}

/// Hosts of one entry: its first brackets are expanded, then the rest.
fn expand_entry(entry: &str) -> Option<Vec<String>> {
    let Some((before, rest)) = entry.split_once('[') else { return Some(vec![entry.to_owned()]) };
    let (ranges, after) = rest.split_once(']')?;
    let ends = expand_entry_end(after)?;
    let mut hosts = Vec::new();
    for range in ranges.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let is_number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        if !is_number(first) || !is_number(last) {
            return None;
        }
        // Leading zeros keep the numbers of a range equally long.
        let width = first.len();
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        if last < first || last - first >= MAX_HOSTS {
            return None;
        }
        for number in first..=last {
            hosts.extend(ends.iter().map(|end| format!("{before}{number:0width$}{end}")));
            if hosts.len() > MAX_HOSTS {
                return None;
            }
        }
    }
    Some(hosts)
}

/// Endings of the hosts of an entry, behind its first brackets.
fn expand_entry_end(end: &str) -> Option<Vec<String>> {
    if end.is_empty() { Some(vec![String::new()]) } else { expand_entry(end) }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Pairs = &'static [(&'static str, &'static str)];

    const FLAGS: &str = "10.0.0.9:4000";
    const TORCH: Pairs =
        &[("RANK", "1"), ("WORLD_SIZE", "3"), ("MASTER_ADDR", "a"), ("MASTER_PORT", "1")];
    const MPI: Pairs = &[("OMPI_COMM_WORLD_RANK", "2"), ("OMPI_COMM_WORLD_SIZE", "4")];
    const SLURM: Pairs = &[
        ("SLURM_PROCID", "3"),
        ("SLURM_STEP_NUM_TASKS", "5"),
        ("SLURM_STEP_NODELIST", "node[07-09]"),
        ("SLURM_JOB_ID", "1234"),
        ("SLURM_STEP_ID", "2"),
    ];
    const KUBERNETES: Pairs =
        &[("JOB_COMPLETION_INDEX", "4"), ("WORLD_SIZE", "6"), ("HOSTNAME", "train-4")];

    fn get<'a>(pairs: &'a [(&'static str, &'static str)]) -> impl Fn(&str) -> Option<String> + 'a {
        |name| pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
    }

    fn value(variables: &Variables, name: &str) -> Option<String> {
        variables.iter().find(|(key, _)| key == name).map(|(_, value)| value.clone())
    }

    fn place(variables: &Variables) -> [String; 4] {
        ["RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"]
            .map(|name| value(variables, name).expect("a place is whole"))
    }

    #[test]
    fn batch_systems_are_translated() {
        let slurm = of_batch_system(get(SLURM)).expect("a step");
        assert_eq!(place(&slurm)[..3], ["3", "5", "node07"].map(str::to_owned));
        assert_eq!(value(&slurm, RUN).as_deref(), Some("slurm-1234.2"));
        assert_eq!(value(&slurm, "LOCAL_WORLD_SIZE"), None, "three hosts");
        let pod = of_batch_system(get(KUBERNETES)).expect("a pod");
        assert_eq!(place(&pod), ["4", "6", "train-0", "29500"].map(str::to_owned));
        let service = [KUBERNETES, &[("LOCKSTEP_SERVICE", "ranks")][..]].concat();
        let pod = of_batch_system(get(&service)).expect("a pod");
        assert_eq!(place(&pod)[2], "train-0.ranks");
    }

    #[test]
    fn ranks_of_one_host_and_ports_of_jobs_are_their_own() {
        let one_host: Vec<_> = [&[("SLURM_STEP_NODELIST", "node3")][..], SLURM].concat();
        let found = of_batch_system(get(&one_host)).expect("a step");
        assert_eq!(value(&found, "LOCAL_WORLD_SIZE").as_deref(), Some("5"));
        let port = |job: &'static str| {
            let step: Vec<_> = [&[("SLURM_JOB_ID", job)][..], SLURM].concat();
            let port = place(&of_batch_system(get(&step)).expect("a step"))[3].clone();
            port.parse::<u16>().expect("a port")
        };
        assert_ne!(port("1234"), port("1235"));
        assert!(
            [port("0"), port("18446744073709551615")].iter().all(|p| (15_000..30_000).contains(p))
        );
    }

    /// Every pair of launchers: the earlier one decides.
    #[test]
    fn the_first_launcher_of_the_order_decides() {
        let order = [TORCH, MPI, SLURM, KUBERNETES];
        let name_of = |found: Option<Variables>| found.map(|found| place(&found)[2].clone());
        for (at, first) in order.iter().enumerate() {
            for second in &order[at + 1..] {
                let both: Vec<_> = [*first, *second].concat();
                let alone = name_of(of_batch_system(get(first)));
                assert_eq!(name_of(of_batch_system(get(&both))), alone, "{both:?}");
            }
        }
        let arguments = RankArguments { rank: 0, world_size: 2, master: FLAGS.to_owned() };
        let found = place(&of_arguments(&arguments).expect("a rank"));
        assert_eq!(found, ["0", "2", "10.0.0.9", "4000"].map(str::to_owned));
    }

    #[test]
    fn arguments_override_the_environment_of_the_world() {
        let world = with_env(&lockstep_platform::real(), vec![("RANK".into(), "7".into())]);
        let arguments = RankArguments { rank: 1, world_size: 2, master: "[fd00::1]:80".into() };
        let found = translate(&world, Some(&arguments)).expect("a rank");
        assert_eq!(found.host().env("RANK").as_deref(), Some("1"));
        assert_eq!(found.host().env("MASTER_ADDR").as_deref(), Some("fd00::1"));
        let same = translate(&world, None).expect("nothing to translate");
        assert_eq!(same.host().env("RANK").as_deref(), Some("7"));
    }

    #[test]
    fn half_a_place_and_single_processes_are_none() {
        for missing in ["SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_STEP_NODELIST"] {
            let rest: Vec<_> = SLURM.iter().filter(|(name, _)| *name != missing).copied().collect();
            assert_eq!(of_batch_system(get(&rest)), None, "without {missing}");
        }
        let one: Vec<_> =
            [&[("SLURM_PROCID", "0"), ("SLURM_STEP_NUM_TASKS", "1")][..], SLURM].concat();
        assert_eq!(of_batch_system(get(&one)), None);
        assert_eq!(of_batch_system(get(&[("JOB_COMPLETION_INDEX", "0")])), None);
        let wrong = RankArguments { rank: 2, world_size: 2, master: FLAGS.to_owned() };
        let text = of_arguments(&wrong).expect_err("two ranks").to_string();
        assert_eq!(text, "--rank 2 is not below --world-size 2; ranks count from 0");
        for master in ["host", "host:", ":80", "host:0", "host:70000"] {
            let wrong = RankArguments { rank: 0, world_size: 2, master: master.to_owned() };
            assert!(of_arguments(&wrong).is_err(), "{master}");
        }
    }

    #[test]
    fn lists_of_hosts_are_expanded() {
        let expanded = expand_hosts("login,node[01-03,7],rack[1-2]n[0-1]").expect("a list");
        let expected = "login node01 node02 node03 node7 rack1n0 rack1n1 rack2n0 rack2n1";
        assert_eq!(expanded.join(" "), expected);
        for wrong in
            ["", "a,,b", "a[1", "a]1[", "a[1-]", "a[2-1]", "a[x]", "a[[1]]", "a[0-9999999]"]
        {
            assert_eq!(expand_hosts(wrong), None, "{wrong}");
        }
    }
}
