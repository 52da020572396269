//! Tests with real servers and workers on loopback, and with invalid peers.

use std::io::{Read, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lockstep_config::{BatchPlan, Blame, Sources, resolve};
use lockstep_platform::{Queue, ScratchDir, World};

use super::secret::{Key, nonce};
use super::wire::{self, Kind, ReadError, Reader, Writer};
use super::*;
use crate::batch::{Batch, IGNORE};
use crate::corpus::Corpus;
use crate::cursor::Cursor;
use crate::error::DataError;
use crate::loader::{Loader, TextName};
use crate::validation::validation_microbatches;

const LONG: Duration = Duration::from_secs(20);

fn key(secret: &str) -> Key {
    Key::new(secret).unwrap()
}

/// A server on a thread, with a small corpus of many documents.
struct Site {
    world: World,
    _scratch: ScratchDir,
    sets: Vec<String>,
    addr: String,
    is_over: Arc<AtomicBool>,
    ended: Arc<Queue<()>>,
    events: Arc<Mutex<Vec<Event>>>,
}

impl Site {
    fn new(sets: &[&str]) -> Self {
        let world = lockstep_platform::real();
        let scratch = ScratchDir::new(&world, "serve").unwrap();
        let lines: Vec<String> =
            (0..60).map(|i| format!("{{\"text\": \"{}\"}}", "ab cd ".repeat(1 + i % 9))).collect();
        let text = scratch.path().join("text.jsonl");
        world.files().write_atomic(&text, lines.join("\n").as_bytes()).unwrap();
        let own = [
            format!("data.source={}", text.display()),
            "model.context=16".to_owned(),
            "train.batch=8".to_owned(),
            "train.microbatch=2".to_owned(),
            "numerics.invariant_up_to=4".to_owned(),
            "train.eval_batches=2".to_owned(),
            "run.deadline=10".to_owned(),
        ];
        let sets: Vec<String> =
            own.into_iter().chain(sets.iter().map(|set| (*set).to_owned())).collect();
        let recipe = recipe_of(&sets);
        let server =
            Server::open_with(key("the secret of the test"), &recipe, &world, "127.0.0.1:0");
        let server = server.unwrap();
        let (is_over, events) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::default()));
        let ended = Arc::new(Queue::new(&world, 1));
        let site = Self {
            world,
            _scratch: scratch,
            sets,
            addr: server.addr(),
            is_over: Arc::clone(&is_over),
            ended: Arc::clone(&ended),
            events: Arc::clone(&events),
        };
        let run = move || {
            let report = move |event| events.lock().unwrap().push(event);
            server.run(|| is_over.load(Ordering::SeqCst), report).unwrap();
            ended.send((), LONG).unwrap();
        };
        drop(site.world.threads().spawn("server", Box::new(run)).unwrap());
        site
    }

    /// Recipe of a worker, with more settings.
    fn recipe(&self, more: &[&str]) -> Recipe {
        let server = ["data.placement=served".to_owned(), format!("data.server={}", self.addr)];
        let more = more.iter().map(|set| (*set).to_owned());
        let sets: Vec<String> = self.sets.iter().cloned().chain(server).chain(more).collect();
        recipe_of(&sets)
    }

    fn join(&self, secret: &str, more: &[&str]) -> Result<Client, DataError> {
        Client::join_with(&key(secret), &self.recipe(more), &self.world)
    }

    fn loader(&self, microbatches: &[usize], cursor: Cursor) -> Loader {
        let client = self.join("the secret of the test", &[]).unwrap();
        let welcome = client.welcome();
        let (name, fingerprint) = (welcome.name.clone(), welcome.fingerprint.clone());
        let shape = crate::batch::BatchShape::of(&self.recipe(&[]));
        let text = TextName { name, fingerprint };
        // One micro-batch per leaf, so both have the same numbers.
        let leaves = (0..4).map(|leaf| microbatches.contains(&leaf)).collect();
        Box::new(client).loader(shape, &self.world, text, cursor, leaves).unwrap()
    }

    fn stop(&self) {
        self.is_over.store(true, Ordering::SeqCst);
        self.ended.recv(LONG).unwrap();
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::SeqCst);
    }
}

fn recipe_of(sets: &[String]) -> Recipe {
    let preset = Some("bible-small".to_owned());
    resolve(&Sources { sets: sets.to_vec(), preset, ..Sources::default() }).unwrap()
}

#[test]
fn served_microbatches_are_those_of_a_shared_text_in_all_epochs() {
    for sets in [
        &[][..],
        &["data.documents=padded", "data.last_batch=pad"],
        &["data.order=sequential", "data.last_batch=drop"],
    ] {
        let site = Site::new(sets);
        let recipe = recipe_of(&site.sets);
        let corpus = Arc::new(Corpus::load(&recipe, &site.world).unwrap());
        let mut shared =
            Loader::open(&recipe, &site.world, Arc::clone(&corpus), Cursor::start()).unwrap();
        let mut workers = [(vec![0, 3], Cursor::start()), (vec![2, 1], Cursor::start())]
            .map(|(microbatches, cursor)| (site.loader(&microbatches, cursor), microbatches));
        // At most about 200 sequences: 30 steps are more than an epoch.
        for step in 0..30 {
            let whole = shared.next_batch().unwrap();
            for (loader, microbatches) in &mut workers {
                let part = loader.next_batch().unwrap();
                assert_eq!(part.num_targets, whole.num_targets, "step {step}");
                for microbatch in microbatches {
                    assert_eq!(
                        part.microbatch(*microbatch),
                        whole.microbatch(*microbatch),
                        "step {step}, {sets:?}"
                    );
                }
            }
        }
        let saved = workers[0].0.cursor();
        assert_eq!(saved, shared.cursor(), "a served run may go on with a shared text");
        let mut resumed = site.loader(&[1], saved);
        assert_eq!(
            resumed.next_batch().unwrap().microbatch(1),
            shared.next_batch().unwrap().microbatch(1)
        );

        let mut client = site.join("the secret of the test", &[]).unwrap();
        assert_eq!(
            client.validation().unwrap(),
            validation_microbatches(&recipe, &corpus).unwrap()
        );
        assert_eq!(client.tokenizer_json().unwrap(), None);
    }
}

#[test]
fn another_secret_or_recipe_is_refused_with_a_reason() {
    let site = Site::new(&[]);
    let refusal = |error: DataError| {
        assert_eq!(error.blame(), Blame::User);
        error.to_string().replace(&site.addr, "ADDR")
    };
    let other = site.join("another secret, as long", &[]).err().unwrap();
    assert_eq!(
        refusal(other),
        "the data server ADDR refuses this worker: it has another LOCKSTEP_SECRET"
    );
    for (set, message) in [
        ("train.seed=2", "it has train.seed = 2, the server train.seed = 1"),
        ("data.order=sequential", "it has data.order = \"sequential\", which the server lacks"),
        ("model.context=8", "it has model.context = 8, the server model.context = 16"),
    ] {
        let error = refusal(site.join("the secret of the test", &[set]).err().unwrap());
        assert!(error.ends_with(message), "{error}");
    }
    // Settings that do not affect batches may differ.
    assert!(site.join("the secret of the test", &["optim.lr=1e-4", "model.layers=2"]).is_ok());
}

#[test]
fn a_lost_server_is_named_and_blamed_on_a_peer() {
    let site = Site::new(&[]);
    let listener = site.world.net().listen("127.0.0.1:0").unwrap();
    let addr = listener.local_addr();
    let mut recipe = site.recipe(&[]);
    recipe.data.server.clone_from(&addr);
    recipe.run.deadline = lockstep_config::units::Seconds(0.2);
    let silent = Client::join_with(&key("the secret of the test"), &recipe, &site.world);
    let silent = silent.err().unwrap();
    assert!(silent.to_string().contains(&format!("server {addr} failed")), "{silent}");
    assert!(silent.to_string().contains("did not answer in time"), "{silent}");
    assert_eq!(silent.blame(), Blame::Peer(0));
    drop(listener);
    let absent = Client::join_with(&key("the secret of the test"), &recipe, &site.world);
    let absent = absent.err().unwrap();
    assert!(absent.to_string().contains("connection refused"), "{absent}");
    assert_eq!(absent.blame(), Blame::Peer(0));
}

#[test]
fn invalid_peers_are_refused_and_others_still_served() {
    let site = Site::new(&[]);
    let call = || site.world.net().connect(&site.addr, LONG).unwrap();
    let mut stranger = call();
    stranger.set_deadline(Some(LONG));
    stranger.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    let heard = wire::read(&mut *stranger, Kind::Challenge, 1000, &mut answer).unwrap_err();
    assert!(heard.to_string().contains("not the bytes of a lockstep data server"), "{heard}");

    // A false length is refused before any of its bytes are read.
    let mut forged = call();
    forged.set_deadline(Some(LONG));
    let mut front = b"lkstdata\x01\0\x01\0".to_vec();
    front.extend_from_slice(&u32::MAX.to_le_bytes());
    forged.write_all(&front).unwrap();
    let heard = wire::read(&mut *forged, Kind::Challenge, 1000, &mut answer).unwrap_err();
    assert!(heard.to_string().contains("4294967295 bytes are announced"), "{heard}");

    // Requests before the handshake are refused.
    let mut early = call();
    early.set_deadline(Some(LONG));
    wire::write(&mut *early, Kind::Pull, &[0; 12]).unwrap();
    assert!(matches!(
        wire::read(&mut *early, Kind::Microbatches, 1000, &mut answer),
        Err(ReadError::Refused(_))
    ));
    assert!(site.loader(&[0], Cursor::start()).next_batch().is_ok());
    let turned_away = |event: &Event| matches!(event, Event::Refused(..));
    assert_eq!(site.events.lock().unwrap().iter().filter(|e| turned_away(e)).count(), 3);
}

#[test]
fn a_protocol_violation_is_refused_with_a_reason() {
    let site = Site::new(&[]);
    let refusal = |kind: Kind, body: &[u8]| {
        let mut client = site.join("the secret of the test", &[]).unwrap();
        client.send_raw(kind, body);
        let mut rest = Vec::new();
        wire::read(client.stream_mut(), Kind::Microbatches, 1000, &mut rest)
            .unwrap_err()
            .to_string()
    };
    let pull = |step: u64, microbatches: &[u32]| {
        let mut body = Writer::default();
        body.number(step);
        for &microbatch in microbatches {
            body.small(microbatch);
        }
        body.bytes
    };
    assert_eq!(refusal(Kind::Pull, &pull(0, &[4])), "micro-batch 4 twice, or beyond the 4");
    assert_eq!(refusal(Kind::Pull, &pull(0, &[1, 1])), "micro-batch 1 twice, or beyond the 4");
    assert!(refusal(Kind::Pull, &pull(u64::MAX, &[1])).ends_with("is out of reach"));
    assert_eq!(refusal(Kind::Pull, &[1, 2]), "the message is cut short");
    assert!(refusal(Kind::PullValidation, &pull(99, &[])).starts_with("micro-batch 99 of"));
    assert_eq!(refusal(Kind::Welcome, &[]), "message 4 is no request");
}

#[test]
fn server_messages_are_validated_like_any_input() {
    let site = Site::new(&[]);
    let shape = crate::batch::BatchShape::of(&site.recipe(&[]));
    let read = |edit: &dyn Fn(&mut Vec<u32>, &mut u64, &mut u64)| {
        let (mut tokens, mut step, mut num_targets) = (vec![7; 64], 5, 128);
        edit(&mut tokens, &mut step, &mut num_targets);
        let mut body = Writer::default();
        body.number(step);
        body.number(num_targets);
        body.tokens(&tokens);
        let mut batch = Batch::allocate(shape);
        batch.begin(5, &BatchPlan::constant(8));
        let read = client::read_microbatches(&body.bytes, 5, [2].into_iter(), &mut batch, 256);
        read.map(|()| batch).map_err(|malformed| malformed.0)
    };
    let batch = read(&|_, _, _| {}).unwrap();
    assert_eq!((batch.step, batch.num_targets, batch.microbatch(2).0[0]), (5, 128, 7));
    let complaint = |edit: &dyn Fn(&mut Vec<u32>, &mut u64, &mut u64)| read(edit).unwrap_err();
    assert!(complaint(&|tokens, _, _| tokens[3] = 256).starts_with("token 256 came"));
    assert!(complaint(&|tokens, _, _| tokens[40] = 999).starts_with("token 999 came"));
    assert!(complaint(&|tokens, _, _| tokens[3] = IGNORE).starts_with("token 4294967295"));
    assert!(complaint(&|_, step, _| *step = 6).starts_with("step 6 came"));
    assert!(complaint(&|_, _, targets| *targets = 129).starts_with("129 targets"));
    assert!(complaint(&|_, _, targets| *targets = 3).starts_with("3 targets"));
    assert_eq!(complaint(&|tokens, _, _| tokens.truncate(9)), "the message is cut short");
    assert_eq!(complaint(&|tokens, _, _| tokens.push(1)), "4 bytes too many");
    read(&|tokens, _, _| tokens[40] = IGNORE).expect("a target may be left out");
}

#[test]
fn messages_round_trip_and_random_bytes_are_harmless() {
    let mut body = Writer::default();
    body.number(u64::MAX);
    body.text("naïve");
    body.tokens(&[1, IGNORE]);
    let mut sent = Vec::new();
    wire::write(&mut sent, Kind::Microbatches, &body.bytes).unwrap();
    let mut heard = Vec::new();
    wire::read(&mut &sent[..], Kind::Microbatches, 100, &mut heard).unwrap();
    let mut reader = Reader::new(&heard);
    assert_eq!((reader.number().unwrap(), reader.text().unwrap()), (u64::MAX, "naïve".to_owned()));
    let mut tokens = [0; 2];
    reader.tokens(&mut tokens).unwrap();
    assert_eq!(tokens, [1, IGNORE]);
    reader.finish().unwrap();

    let world = lockstep_platform::real();
    for round in 0..200 {
        let noise = [nonce(&world), nonce(&world)].concat();
        let mut bytes = sent.clone();
        let at = round % bytes.len();
        bytes[at] ^= noise[0] | 1;
        let _ = wire::read_any(&mut &bytes[..], 100, &mut heard);
        let _ = Reader::new(&noise).text();
        assert!(wire::read_any(&mut noise.as_slice().take(64), 100, &mut heard).is_err());
    }
}

#[test]
fn a_server_stops_on_request() {
    let site = Site::new(&[]);
    assert!(site.loader(&[0], Cursor::start()).next_batch().is_ok());
    site.stop();
}
