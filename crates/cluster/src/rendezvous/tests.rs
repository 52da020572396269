//! Runs whose ranks join, with correct and missing ranks.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::sync::{Arc, LazyLock, Mutex};

use lockstep_platform::{JoinHandle, Stream, real};

use super::*;

pub(super) const LIMIT: Duration = Duration::from_secs(30);

pub(super) fn settings() -> Settings {
    Settings { timeout: LIMIT, log: Some(record_line), ..Settings::default() }
}

fn within_ms(timeout_ms: u64) -> Settings {
    Settings { timeout: Duration::from_millis(timeout_ms), ..Settings::default() }
}

/// Log lines of all runs of this process.
static LINES: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Number of lines before each client connected, by its address: the system gives the port of a
/// closed connection to another test's client.
static LINES_BEFORE: Mutex<BTreeMap<String, usize>> = Mutex::new(BTreeMap::new());

fn record_line(line: &str) {
    LINES.lock().unwrap().push(line.to_owned());
}

/// Logged reason of the rejection of a client; waits for it.
pub(super) fn logged_reason(addr: &str) -> String {
    let deadline = Deadline::after(real().clock(), LIMIT);
    let start = format!("refused {addr}: ");
    let earlier = LINES_BEFORE.lock().unwrap()[addr];
    loop {
        let lines = LINES.lock().unwrap();
        if let Some(line) = lines[earlier..].iter().find_map(|line| line.strip_prefix(&start)) {
            return line.to_owned();
        }
        assert!(!deadline.has_passed(real().clock()), "no line about {addr} in {lines:?}");
        drop(lines);
        real().clock().sleep(Duration::from_millis(1));
    }
}

/// Ticket of the runs here that need no other.
pub(super) fn ticket() -> Ticket {
    static TICKET: LazyLock<Ticket> = LazyLock::new(|| Ticket::new(&real()));
    TICKET.clone()
}

pub(super) type Outcome = Result<ConnectedRank, RendezvousError>;

/// Rank that joins on a thread of its own.
pub(super) struct Joining {
    thread: Box<dyn JoinHandle>,
    outcome: Arc<Mutex<Option<Outcome>>>,
}

impl Joining {
    pub(super) fn start(run: impl FnOnce(&World) -> Outcome + Send + 'static) -> Self {
        let outcome = Arc::new(Mutex::new(None));
        let slot = Arc::clone(&outcome);
        let body = Box::new(move || {
            let joined = run(&real());
            *slot.lock().unwrap() = Some(joined);
        });
        Self { thread: real().threads().spawn("rank", body).unwrap(), outcome }
    }

    pub(super) fn finish(self) -> Outcome {
        self.thread.join().unwrap();
        self.outcome.lock().unwrap().take().unwrap()
    }
}

/// Rank 0 of a run, and its address.
pub(super) fn first(num_ranks: usize, settings: Settings) -> (Joining, String) {
    first_with(num_ranks, settings, &ticket())
}

pub(super) fn first_with(
    num_ranks: usize,
    settings: Settings,
    ticket: &Ticket,
) -> (Joining, String) {
    let listener = listen(&real(), "127.0.0.1:0").unwrap();
    let addr = listener.local_addr();
    let rank_env = RankEnv::new(Rank(0), num_ranks, &addr, ticket);
    let joining = Joining::start(move |world| join_as_first(world, listener, &rank_env, &settings));
    (joining, addr)
}

pub(super) fn other(rank: usize, num_ranks: usize, master: &str, settings: Settings) -> Joining {
    other_with(rank, num_ranks, master, settings, &ticket())
}

pub(super) fn other_with(
    rank: usize,
    num_ranks: usize,
    master: &str,
    settings: Settings,
    ticket: &Ticket,
) -> Joining {
    let rank_env = RankEnv::new(Rank(rank), num_ranks, master, ticket);
    Joining::start(move |world| join(world, &rank_env, &settings))
}

pub(super) fn all(
    num_ranks: usize,
    settings: Settings,
    disturb: impl FnOnce(&str),
) -> Vec<ConnectedRank> {
    let (first, addr) = first(num_ranks, settings);
    disturb(&addr);
    let others = (1..num_ranks).map(|rank| other(rank, num_ranks, &addr, settings));
    let ranks: Vec<Joining> = std::iter::once(first).chain(others).collect();
    ranks.into_iter().map(|rank| rank.finish().unwrap()).collect()
}

pub(super) fn call(addr: &str) -> Box<dyn Stream> {
    let earlier = LINES.lock().unwrap().len();
    let mut stream = real().net().connect(addr, LIMIT).unwrap();
    LINES_BEFORE.lock().unwrap().insert(stream.local_addr(), earlier);
    stream.set_deadline(Some(LIMIT));
    stream
}

#[test]
fn runs_of_one_to_five_ranks_join() {
    for num_ranks in 1..=5 {
        let joined = all(num_ranks, settings(), |_| ());
        for (rank, end) in joined.iter().enumerate() {
            assert_eq!((end.rank, end.num_ranks), (Rank(rank), num_ranks));
            assert_eq!(end.run, joined[0].run);
            assert_eq!(end.hosts, joined[0].hosts);
            assert_eq!(end.num_local(), num_ranks);
            let others: Vec<Rank> = (0..num_ranks).map(Rank).filter(|&r| r != end.rank).collect();
            assert_eq!(end.local_peers(), others, "all are on this machine");
            assert_eq!(end.domains, vec![0; num_ranks]);
            for (peer, connection) in
                end.connections.iter().flat_map(|channel| channel.iter().enumerate())
            {
                let num_streams = connection.as_ref().map(|connection| connection.data.len());
                assert_eq!(num_streams, (peer != rank).then_some(2));
            }
        }
    }
}

#[test]
fn streams_connect_the_right_ranks() {
    check_stream_ends(settings());
}

#[test]
fn encrypted_streams_connect_the_right_ranks() {
    check_stream_ends(Settings { encrypt: true, ..settings() });
}

fn check_stream_ends(settings: Settings) {
    let joined = all(3, settings, |_| ());
    // Indexed by rank: every stream with its peer.
    let mut streams: Vec<Vec<(usize, Box<dyn Stream>)>> = Vec::new();
    for end in joined {
        let channels =
            end.connections.into_iter().flat_map(|channel| channel.into_iter().enumerate());
        let connections = channels.filter_map(|(peer, connection)| Some((peer, connection?)));
        let opened = connections.flat_map(|(peer, connection)| {
            std::iter::once(connection.control)
                .chain(connection.data)
                .map(move |stream| (peer, stream))
        });
        streams.push(opened.collect());
    }
    let number = |rank: usize, peer: usize, index: usize| [rank as u8, peer as u8, index as u8];
    // The streams of a pair have the same order at both ends.
    for (rank, peers) in streams.iter_mut().enumerate() {
        let mut counts = [0; 3];
        for (peer, stream) in peers {
            stream.set_deadline(Some(LIMIT));
            stream.write_all(&number(rank, *peer, counts[*peer])).unwrap();
            counts[*peer] += 1;
        }
    }
    for (rank, peers) in streams.iter_mut().enumerate() {
        let mut counts = [0; 3];
        for (peer, stream) in peers {
            let mut received = [0; 3];
            stream.read_exact(&mut received).unwrap();
            assert_eq!(received, number(*peer, rank, counts[*peer]));
            counts[*peer] += 1;
        }
        assert_eq!(counts.iter().sum::<usize>(), 2 * NUM_CHANNELS * 3);
    }
}

#[test]
fn shared_memory_is_detected_only_if_enabled() {
    let apart = Settings { shares_memory: false, num_streams: 1, ..settings() };
    for end in all(2, apart, |_| ()) {
        assert!(end.local_peers().is_empty());
        assert_eq!(end.domains, [0, 1]);
        assert!(
            end.connections.iter().flatten().flatten().all(|connection| connection.data.len() == 1)
        );
    }
}

#[test]
fn missing_ranks_and_rejected_ones_are_named() {
    let (first, addr) = first(4, within_ms(500));
    let wrong = other(2, 3, &addr, settings());
    let three = other(3, 4, &addr, within_ms(1000));
    let error = wrong.finish().err().unwrap();
    assert_eq!(error.to_string(), "rank 0 refused: it expects 3 ranks and this run has 4");
    let error = first.finish().err().unwrap();
    let RendezvousError::Missing { missing, refused, .. } = &error else { panic!("{error}") };
    assert_eq!(missing, &[Rank(1), Rank(2)]);
    assert!(refused[0].ends_with("it expects 3 ranks and this run has 4"), "{refused:?}");
    assert_eq!(error.blame(), lockstep_config::Blame::Peer(1));
    assert!(three.finish().is_err());
}

/// Settings that report a wait soon, for `timeout_ms`.
fn reporting(timeout_ms: u64, log: Log) -> Settings {
    let (first, every) = (Duration::from_millis(1), Duration::from_secs(100));
    let wait_reports = WaitReports { first, every };
    Settings { log: Some(log), wait_reports, ..within_ms(timeout_ms) }
}

#[test]
fn rank_0_reports_missing_ranks_and_others_that_they_have_joined() {
    static REPORTS: Mutex<Vec<String>> = Mutex::new(Vec::new());
    let log: Log = |line| REPORTS.lock().unwrap().push(line.to_owned());
    let (first, addr) = first(4, reporting(500, log));
    let two = other(2, 4, &addr, reporting(600, log));
    assert!(first.finish().is_err() && two.finish().is_err());
    let reports = REPORTS.lock().unwrap();
    let joined = format!("rank 2 has joined at {addr} and waits until rank 0 has all ranks; ");
    assert!(reports.iter().any(|line| line.starts_with(&joined)), "{reports:?}");
    let missing = |line: &&String| line.starts_with("waiting for ranks 1");
    let line = reports.iter().find(missing).expect("rank 0 reports");
    assert!(line.ends_with(&format!("3 of 4 at {addr}; 0 s of 0 s")), "{line}");
}

#[test]
fn a_rank_reports_a_host_that_does_not_answer() {
    static REPORTS: Mutex<Vec<String>> = Mutex::new(Vec::new());
    let log: Log = |line| REPORTS.lock().unwrap().push(line.to_owned());
    let listener = listen(&real(), "127.0.0.1:0").unwrap();
    let addr = listener.local_addr();
    drop(listener);
    other(2, 4, &addr, reporting(100, log)).finish().err().unwrap();
    let expected = format!(
        "rank 2 waits for rank 0 at {addr}, connection refused (is it started?); 0 s of 0 s"
    );
    assert_eq!(*REPORTS.lock().unwrap(), [expected]);
}

#[test]
fn a_taken_port_is_an_error_that_names_the_variable() {
    let taken = listen(&real(), "127.0.0.1:0").unwrap();
    let addr = taken.local_addr();
    let rank_env = RankEnv::new(Rank(0), 2, &addr, &ticket());
    let rank_env = RankEnv { port: MasterPort::NextToAgent { agent: 29500 }, ..rank_env };
    let error = join(&real(), &rank_env, &within_ms(100)).err().unwrap();
    assert_eq!(error.blame(), lockstep_config::Blame::User);
    let text = error.to_string();
    assert!(text.starts_with(&format!("cannot listen on {addr}: ")), "{text}");
    assert!(text.contains("set LOCKSTEP_MASTER_PORT to a free port"), "{text}");
}

#[test]
fn a_run_without_rank_0_ends_with_the_deadline() {
    let listener = listen(&real(), "127.0.0.1:0").unwrap();
    let addr = listener.local_addr();
    drop(listener);
    let (world, timeout) = (real(), within_ms(100));
    let start = world.clock().now();
    let error = other(1, 2, &addr, timeout).finish().err().unwrap();
    assert!(error.to_string().contains("connection refused"), "{error}");
    assert_eq!(error.blame(), lockstep_config::Blame::Peer(0));
    let waited = world.clock().since(start);
    assert!(waited >= timeout.timeout && waited < LIMIT, "{waited:?}");
}

#[test]
fn ranks_that_start_before_rank_0_wait_for_it() {
    let listener = listen(&real(), "127.0.0.1:0").unwrap();
    let addr = listener.local_addr();
    drop(listener);
    let early = other(1, 2, &addr, settings());
    let rank_env = RankEnv::new(Rank(0), 2, &addr, &ticket());
    let first = Joining::start(move |world| join(world, &rank_env, &settings()));
    first.finish().unwrap();
    early.finish().unwrap();
}

/// Run with a standalone rendezvous host.
fn hosted(num_ranks: usize, settings: Settings) -> (Box<dyn JoinHandle>, Vec<ConnectedRank>) {
    let listener = listen(&real(), "127.0.0.1:0").unwrap();
    let master = listener.local_addr();
    let body = Box::new(move || {
        let hosted = host(&real(), listener, &ticket(), num_ranks, &settings).unwrap();
        assert_eq!(hosted.ranks.len(), num_ranks);
    });
    let thread = real().threads().spawn("rendezvous-host", body).unwrap();
    let start = |rank| {
        let rank_env = RankEnv::new(Rank(rank), num_ranks, &master, &ticket());
        let rank_env = RankEnv { has_standalone_host: true, ..rank_env };
        Joining::start(move |world| join(world, &rank_env, &settings))
    };
    let ranks: Vec<Joining> = (0..num_ranks).map(start).collect();
    (thread, ranks.into_iter().map(|rank| rank.finish().unwrap()).collect())
}

#[test]
fn ranks_join_at_a_standalone_host() {
    for num_ranks in 2..=3 {
        let (thread, joined) = hosted(num_ranks, settings());
        thread.join().unwrap();
        for (rank, end) in joined.iter().enumerate() {
            assert_eq!((end.rank, &end.run), (Rank(rank), &joined[0].run));
            assert_eq!(end.domains, vec![0; num_ranks]);
        }
    }
}

#[test]
fn an_unreachable_standalone_host_is_not_reported_as_rank_0() {
    let listener = listen(&real(), "127.0.0.1:0").unwrap();
    let rank_env = RankEnv::new(Rank(0), 2, &listener.local_addr(), &ticket());
    drop(listener);
    let rank_env = RankEnv { has_standalone_host: true, ..rank_env };
    let error = join(&real(), &rank_env, &within_ms(50)).err().unwrap().to_string();
    assert!(error.starts_with("the rendezvous host could not be reached at 127.0.0.1:"), "{error}");
}
