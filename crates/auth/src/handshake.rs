//! From the secret to a session: NNpsk0 of the Noise protocol.
//!
//! ```text
//! caller                                     host
//!   call:  front, fresh key, tag      ->     the tag fits: it knows the secret, or repeats one
//!   tag fits: it knows the secret     <-     reply: front, fresh key, tag
//!   first sealed record               ->     it opens: the caller is no recording
//! ```
//!
//! Fronts are plain and have a fixed shape for ever, so that ranks of different versions can still
//! tell each other so, sealed. A host spends a few hashes on a caller that does not know the
//! secret, and no product of keys; it keeps nothing of it.

use lockstep_platform::World;
use snow::params::{CipherChoice, DHChoice, HashChoice};
use snow::resolvers::{CryptoResolver, DefaultResolver};
use snow::types::{Cipher, Dh, Hash, Random};
use snow::{Builder, HandshakeState};

use super::session::Session;
use super::ticket::Secret;

/// The pattern and its functions, in Noise's own spelling.
const PATTERN: &str = "Noise_NNpsk0_25519_ChaChaPoly_BLAKE2s";

/// What every greeting starts with.
const MAGIC: [u8; 8] = *b"lockstep";

/// The shape of greetings, not the version of what is said in them.
const SHAPE: u16 = 2;

const CALL: u8 = 1;
const REPLY: u8 = 2;
const NO: u8 = 3;

/// The magic word, the shape in two bytes, and the kind.
const FRONT_BYTES: usize = 11;

/// A key and a tag.
const NOISE_BYTES: usize = 32 + 16;

/// Length of every greeting: calls, replies and refusals.
pub const GREETING_BYTES: usize = FRONT_BYTES + NOISE_BYTES;

/// A call, a reply or a refusal.
pub type Greeting = [u8; GREETING_BYTES];

/// Why somebody is not trusted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mistrust {
    /// It is no rank of any run.
    NotOurs,
    /// It does not know the secret.
    Stranger,
    /// It says that we do not.
    Refused,
}

impl Mistrust {
    /// In words, about the other one.
    pub fn reason(self) -> &'static str {
        match self {
            Self::NotOurs => "these are not the bytes of a lockstep run",
            Self::Stranger => "it does not know the run's secret",
            Self::Refused => {
                "it has another secret; LOCKSTEP_SECRET must be the same for all workers of a run"
            }
        }
    }
}

/// Whether bytes may become a greeting.
pub fn is_like_a_greeting(bytes: &[u8]) -> bool {
    bytes.iter().zip(&front(CALL)[..FRONT_BYTES - 1]).all(|(byte, front)| byte == front)
}

/// A caller that waits for the reply.
pub struct Call(HandshakeState);

impl Call {
    /// Starts a conversation; the greeting is the first thing to send.
    pub fn new(world: &World, secret: &Secret) -> (Self, Greeting) {
        let mut state = builder(world, secret).build_initiator().expect("the pattern is complete");
        let mut greeting = [0; GREETING_BYTES];
        greeting[..FRONT_BYTES].copy_from_slice(&front(CALL));
        let written = state.write_message(&[], &mut greeting[FRONT_BYTES..]);
        assert_eq!(written, Ok(NOISE_BYTES), "a key and a tag");
        (Self(state), greeting)
    }

    /// The reply came.
    pub fn finish(mut self, reply: &Greeting) -> Result<Session, Mistrust> {
        let (kind, noise) = split(reply)?;
        if kind == NO {
            return Err(Mistrust::Refused);
        }
        if kind != REPLY {
            return Err(Mistrust::NotOurs);
        }
        self.0.read_message(noise, &mut []).map_err(|_| Mistrust::Stranger)?;
        Ok(Session::new(self.0))
    }
}

/// Answers a call.
pub fn answer(
    world: &World,
    secret: &Secret,
    call: &Greeting,
) -> Result<(Greeting, Session), Mistrust> {
    let (kind, noise) = split(call)?;
    if kind != CALL {
        return Err(Mistrust::NotOurs);
    }
    let mut state = builder(world, secret).build_responder().expect("the pattern is complete");
    state.read_message(noise, &mut []).map_err(|_| Mistrust::Stranger)?;
    let mut reply = [0; GREETING_BYTES];
    reply[..FRONT_BYTES].copy_from_slice(&front(REPLY));
    let written = state.write_message(&[], &mut reply[FRONT_BYTES..]);
    assert_eq!(written, Ok(NOISE_BYTES), "a key and a tag");
    Ok((reply, Session::new(state)))
}

/// What a caller with another secret is told: no more than it knows already.
pub fn refusal() -> Greeting {
    let mut greeting = [0; GREETING_BYTES];
    greeting[..FRONT_BYTES].copy_from_slice(&front(NO));
    greeting
}

fn front(kind: u8) -> [u8; FRONT_BYTES] {
    let mut front = [kind; FRONT_BYTES];
    front[..8].copy_from_slice(&MAGIC);
    front[8..10].copy_from_slice(&SHAPE.to_le_bytes());
    front
}

fn split(greeting: &Greeting) -> Result<(u8, &[u8]), Mistrust> {
    let (start, noise) = greeting.split_at(FRONT_BYTES);
    let kind = start[FRONT_BYTES - 1];
    if start == front(kind) { Ok((kind, noise)) } else { Err(Mistrust::NotOurs) }
}

fn builder<'a>(world: &World, secret: &'a Secret) -> Builder<'a> {
    let pattern = PATTERN.parse().expect("a pattern that exists");
    let resolver = Box::new(Resolver(world.clone()));
    let builder = Builder::with_resolver(pattern, resolver);
    builder.psk(0, secret.bytes()).expect("one secret, at the start")
}

/// The usual functions, with random numbers from the world.
struct Resolver(World);

impl CryptoResolver for Resolver {
    fn resolve_rng(&self) -> Option<Box<dyn Random>> {
        Some(Box::new(Entropy(self.0.clone())))
    }

    fn resolve_dh(&self, choice: &DHChoice) -> Option<Box<dyn Dh>> {
        DefaultResolver.resolve_dh(choice)
    }

    fn resolve_hash(&self, choice: &HashChoice) -> Option<Box<dyn Hash>> {
        DefaultResolver.resolve_hash(choice)
    }

    fn resolve_cipher(&self, choice: &CipherChoice) -> Option<Box<dyn Cipher>> {
        DefaultResolver.resolve_cipher(choice)
    }
}

struct Entropy(World);

impl Random for Entropy {
    fn try_fill_bytes(&mut self, dest: &mut [u8]) -> Result<(), snow::Error> {
        self.0.entropy().fill(dest);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use lockstep_platform::real;

    use super::*;

    fn converse() -> (Session, Session, Greeting, Secret) {
        let world = real();
        let secret = Secret::new(&world);
        let (call, greeting) = Call::new(&world, &secret);
        let (reply, host) = answer(&world, &secret, &greeting).unwrap();
        (call.finish(&reply).unwrap(), host, greeting, secret)
    }

    #[test]
    fn both_sides_open_what_the_other_has_sealed_and_nothing_else() {
        let (caller, host, ..) = converse();
        let record = caller.seal_one(b"hello");
        assert_eq!(host.open_one(&record).as_deref(), Some(&b"hello"[..]));
        assert_eq!(host.open_one(&record), None, "a record is good for one time");
        let mut record = host.seal_one(b"welcome");
        assert_eq!(host.open_one(&record), None, "nobody can be told his own words");
        record[5] ^= 1;
        assert_eq!(caller.open_one(&record), None, "nobody can change them");
    }

    #[test]
    fn without_the_secret_neither_side_gets_anywhere() {
        let world = real();
        let (ours, theirs) = (Secret::new(&world), Secret::new(&world));
        let (call, greeting) = Call::new(&world, &theirs);
        assert_eq!(answer(&world, &ours, &greeting).err(), Some(Mistrust::Stranger));
        // Somebody who only pretends to host answers as well as it can.
        let (_, own_greeting) = Call::new(&world, &ours);
        let (reply, _) = answer(&world, &ours, &own_greeting).unwrap();
        assert_eq!(call.finish(&reply).err(), Some(Mistrust::Stranger));
        let (call, _) = Call::new(&world, &theirs);
        assert_eq!(call.finish(&refusal()).err(), Some(Mistrust::Refused));
    }

    #[test]
    fn a_recorded_conversation_cannot_be_repeated() {
        let (caller, host, greeting, secret) = converse();
        let hello = caller.seal_one(b"hello");
        assert!(host.open_one(&hello).is_some());
        // The call still fits, since it is genuine, but the new host's key is another one.
        let (_, again) = answer(&real(), &secret, &greeting).unwrap();
        assert_eq!(again.open_one(&hello), None);
    }

    #[test]
    fn a_greeting_cannot_be_turned_into_another_kind() {
        let (.., greeting, secret) = converse();
        let (call, _) = Call::new(&real(), &secret);
        assert_eq!(call.finish(&greeting).err(), Some(Mistrust::NotOurs), "a mirror is no host");
        let (reply, _) = answer(&real(), &secret, &greeting).unwrap();
        assert_eq!(answer(&real(), &secret, &reply).err(), Some(Mistrust::NotOurs));
    }

    #[test]
    fn every_bit_of_a_greeting_counts() {
        let (.., greeting, secret) = converse();
        let world = real();
        for bit in 0..8 * GREETING_BYTES {
            let mut changed = greeting;
            changed[bit / 8] ^= 1 << (bit % 8);
            assert!(answer(&world, &secret, &changed).is_err(), "bit {bit}");
        }
    }
}
