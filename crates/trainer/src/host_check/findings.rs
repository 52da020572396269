//! Rules that compare the hosts of a run with each other and with what a run needs.
//!
//! A factor of two between hosts or links that ought to be equal is far beyond the spread of
//! repeated measurements, and halves a run that waits for its slowest rank.

use super::{HostFacts, LinkFacts};
use lockstep_config::units::{Bytes, BytesPerSecond, Seconds};
use serde::Serialize;
use std::collections::BTreeMap;

/// Share of the median below which a rate stands out.
const SLOW_SHARE: f64 = 0.5;

/// Multiple of the median above which a latency stands out.
const HIGH_LATENCY: f64 = 4.0;

/// Share of the largest memory below which a host stands out.
const SMALL_MEMORY: f64 = 0.9;

/// Offset of a clock that shows in the times of events and files.
const CLOCK_SECONDS: f64 = 1.0;

/// Files that a rank opens beside its connections, and connections to each other rank.
const OPEN_FILES: u64 = 256;
const CONNECTIONS_PER_RANK: u64 = 16;

/// Consequence of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Severity {
    /// A run fails, or has other bits.
    Error,
    /// A run is slower, or less is possible.
    Warning,
}

/// One deviation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Its consequence.
    pub severity: Severity,
    /// Host, or two hosts of a link.
    pub at: String,
    /// The deviation as a text.
    pub text: String,
    /// A change that mends it.
    pub remedy: String,
}

/// All findings, the severest first.
pub fn find(hosts: &[HostFacts], links: &[LinkFacts]) -> Vec<Finding> {
    let mut findings = Vec::new();
    let Some(first) = hosts.first() else { return findings };
    // Ranks of one host share most facts; each is reported once.
    let by_host: BTreeMap<&str, Vec<&HostFacts>> =
        hosts.iter().fold(BTreeMap::new(), |mut by_host, facts| {
            by_host.entry(facts.host.as_str()).or_insert_with(Vec::new).push(facts);
            by_host
        });
    let needed_files = OPEN_FILES + CONNECTIONS_PER_RANK * (hosts.len() as u64 - 1);
    let largest = hosts.iter().map(|facts| facts.memory_bytes).max().unwrap_or(0);
    let disk = median(hosts.iter().filter_map(|facts| facts.disk_bytes_per_second));
    for (host, ranks) in by_host {
        let mut add = |severity, text: String, remedy: &str| {
            let (at, remedy) = (host.to_owned(), remedy.to_owned());
            findings.push(Finding { severity, at, text, remedy });
        };
        let own = ranks[0];
        if own.version != first.version {
            let text = format!("version {}, not {} of rank 0", own.version, first.version);
            add(Severity::Error, text, "install one version on all hosts");
        }
        if own.kernel_class != first.kernel_class {
            let [own, first] = [own, first].map(|facts| &facts.kernel_class);
            let text = format!("kernels {own}, not {first} of rank 0: other bits");
            add(Severity::Error, text, "set precision.compute or run.device so that all agree");
        }
        if own.device != first.device && !own.device.starts_with("cuda") {
            let text = format!("trains on {}, rank 0 on {}", own.device, first.device);
            add(Severity::Error, text, "set run.device, or mend the driver of this host");
        }
        if let Some(error) = ranks.iter().find_map(|facts| facts.disk_error.as_ref()) {
            add(Severity::Error, format!("cannot write: {error}"), "mend the folder of run.dir");
        }
        if let Some(limit) = own.open_files.filter(|limit| *limit < needed_files) {
            let text = format!("{limit} files may be open, {needed_files} are needed");
            add(Severity::Error, text, "raise the limit: ulimit -n 65536, or limits.conf");
        }
        let ahead = own.clock_ahead_seconds;
        if ahead.abs() - own.clock_error_seconds > CLOCK_SECONDS {
            let side = if ahead > 0.0 { "ahead" } else { "behind" };
            let text = format!("its clock is {} {side} of rank 0's", Seconds(ahead.abs()));
            add(Severity::Warning, text, "synchronize the clocks, by chrony for example");
        }
        let threads: usize = ranks.iter().map(|facts| facts.threads).sum();
        if own.device == "cpu" && threads > own.cores {
            let text = format!("{threads} threads of {} ranks on {} cores", ranks.len(), own.cores);
            add(Severity::Warning, text, "start fewer ranks there, or lower run.threads");
        }
        if (own.memory_bytes as f64) < SMALL_MEMORY * largest as f64 && own.memory_bytes > 0 {
            let [own, largest] = [own.memory_bytes, largest].map(Bytes);
            let text = format!("{own} of memory, another host {largest}");
            add(
                Severity::Warning,
                text,
                "the smallest host limits the layout; lockstep plan says how",
            );
        }
        let own_disk = median(ranks.iter().filter_map(|facts| facts.disk_bytes_per_second));
        if let Some((own, usual)) = own_disk.zip(disk).filter(|(own, all)| *own < SLOW_SHARE * all)
        {
            let [own, usual] = [own, usual].map(BytesPerSecond);
            add(
                Severity::Warning,
                format!("writes {own}, the median is {usual}"),
                "check its disk",
            );
        }
        if !ranks.iter().all(|facts| facts.shares_folder) {
            let text = "does not see the folder of runs of rank 0".to_owned();
            add(
                Severity::Warning,
                text,
                "put run.dir on a shared file system to restart elsewhere",
            );
        }
    }
    findings.extend(slow_links(hosts, links));
    findings.sort_by_key(|finding| finding.severity);
    findings
}

/// Links that stand out among those of their kind: inside a host, or between hosts.
fn slow_links(hosts: &[HostFacts], links: &[LinkFacts]) -> Vec<Finding> {
    let host = |rank: usize| hosts[rank].host.as_str();
    let mut findings = BTreeMap::new();
    for is_inside in [true, false] {
        let of_kind = |link: &&LinkFacts| (host(link.from) == host(link.to)) == is_inside;
        let links = || links.iter().filter(of_kind);
        let bandwidth = median(links().map(|link| link.bytes_per_second));
        let latency = median(links().map(|link| link.latency_seconds));
        let Some((bandwidth, latency)) = bandwidth.zip(latency) else { continue };
        for link in links() {
            let at = format!("{} to {}", host(link.from), host(link.to));
            let text = if link.bytes_per_second < SLOW_SHARE * bandwidth {
                let [own, usual] = [link.bytes_per_second, bandwidth].map(BytesPerSecond);
                format!("{own}, the median is {usual}")
            } else if link.latency_seconds > HIGH_LATENCY * latency {
                let [own, usual] = [link.latency_seconds, latency].map(Seconds);
                format!("a message takes {own}, the median is {usual}")
            } else {
                continue;
            };
            let remedy = "check cable, switch port and network of both".to_owned();
            let finding = Finding { severity: Severity::Warning, at: at.clone(), text, remedy };
            // Ranks of the same two hosts use the same link.
            findings.entry(at).or_insert(finding);
        }
    }
    findings.into_values().collect()
}

/// Median; the upper one of an even number. One bad host of four takes part in half of all links.
fn median(values: impl Iterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two ranks on each of four equal hosts.
    fn cluster() -> (Vec<HostFacts>, Vec<LinkFacts>) {
        let host = |rank: usize| HostFacts {
            rank,
            host: format!("node{}", rank / 2),
            version: "1.0.0".to_owned(),
            kernel_class: "f32-fma".to_owned(),
            device: "cpu".to_owned(),
            cores: 16,
            threads: 8,
            memory_bytes: 64 << 30,
            open_files: Some(1024),
            clock_ahead_seconds: 0.001,
            clock_error_seconds: 0.0001,
            disk_bytes_per_second: Some(1e9),
            disk_error: None,
            shares_folder: true,
        };
        let pairs = (0..64).map(|pair| (pair / 8, pair % 8)).filter(|(from, to)| from != to);
        let link = |(from, to): (usize, usize)| {
            let (latency_seconds, bytes_per_second) =
                if from / 2 == to / 2 { (1e-6, 1e10) } else { (3e-5, 3e9) };
            LinkFacts { from, to, latency_seconds, bytes_per_second }
        };
        ((0..8).map(host).collect(), pairs.map(link).collect())
    }

    /// A change to a healthy cluster.
    type Fault = fn(&mut [HostFacts], &mut [LinkFacts]);

    #[test]
    fn a_healthy_cluster_has_no_findings() {
        let (hosts, links) = cluster();
        assert_eq!(find(&hosts, &links), []);
    }

    #[test]
    fn each_fault_is_found_at_its_host_and_nowhere_else() {
        let faults: [(Severity, &str, &str, Fault); 12] = [
            (Severity::Error, "node2", "version 0.9", |hosts, _| {
                hosts[4..6].iter_mut().for_each(|facts| facts.version = "0.9".to_owned());
            }),
            (Severity::Error, "node1", "kernels bf16-amx", |hosts, _| {
                hosts[2..4].iter_mut().for_each(|facts| facts.kernel_class = "bf16-amx".to_owned());
            }),
            (Severity::Error, "node3", "cannot write: disk full", |hosts, _| {
                hosts[7].disk_error = Some("disk full".to_owned());
            }),
            (Severity::Error, "node3", "300 files may be open, 368", |hosts, _| {
                hosts[6..].iter_mut().for_each(|facts| facts.open_files = Some(300));
            }),
            (Severity::Warning, "node1", "2 s ahead", |hosts, _| {
                hosts[2].clock_ahead_seconds = 2.0;
            }),
            (Severity::Warning, "node2", "behind", |hosts, _| {
                hosts[4].clock_ahead_seconds = -3600.0;
            }),
            (Severity::Warning, "node2", "24 threads of 2 ranks on 16 cores", |hosts, _| {
                hosts[4].threads = 16;
            }),
            (Severity::Warning, "node1", "of memory", |hosts, _| {
                hosts[2..4].iter_mut().for_each(|facts| facts.memory_bytes = 32 << 30);
            }),
            (Severity::Warning, "node0", "writes", |hosts, _| {
                hosts[..2].iter_mut().for_each(|facts| facts.disk_bytes_per_second = Some(1e8));
            }),
            (Severity::Warning, "node3", "does not see the folder", |hosts, _| {
                hosts[6].shares_folder = false;
            }),
            (Severity::Warning, "node1 to node3", "the median is", |_, links| {
                let is_slow = |link: &&mut LinkFacts| (link.from, link.to) == (2, 7);
                links.iter_mut().filter(is_slow).for_each(|link| link.bytes_per_second = 1e9);
            }),
            (Severity::Warning, "node0 to node0", "a message takes", |_, links| {
                let is_slow = |link: &&mut LinkFacts| (link.from, link.to) == (0, 1);
                links.iter_mut().filter(is_slow).for_each(|link| link.latency_seconds = 1e-5);
            }),
        ];
        for (severity, at, text, fault) in faults {
            let (mut hosts, mut links) = cluster();
            fault(&mut hosts, &mut links);
            let found = find(&hosts, &links);
            let [finding] = &found[..] else { panic!("{at} {text}: {found:?}") };
            assert_eq!((finding.severity, finding.at.as_str()), (severity, at));
            assert!(finding.text.contains(text), "{finding:?}");
        }
    }

    #[test]
    fn errors_come_first() {
        let (mut hosts, links) = cluster();
        hosts[0].threads = 99;
        hosts[7].disk_error = Some("full".to_owned());
        let severities: Vec<_> =
            find(&hosts, &links).into_iter().map(|finding| finding.severity).collect();
        assert_eq!(severities, [Severity::Error, Severity::Warning]);
    }
}
