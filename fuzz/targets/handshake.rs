//! Fuzzes both sides of the handshake: no forged message is accepted.

#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use lockstep_auth::hostile::Eavesdropper;
use lockstep_cluster::rendezvous::hostile::samples;

static EAVESDROPPER: LazyLock<Eavesdropper> =
    LazyLock::new(|| Eavesdropper::new(&lockstep_platform::real(), &samples()[0]));

fuzz_target!(|bytes: &[u8]| {
    let is_new = |genuine: &[u8]| bytes != genuine;
    assert!(!(is_new(&EAVESDROPPER.first_message) && EAVESDROPPER.accepts_first_message(bytes)));
    assert!(!EAVESDROPPER.accepts_reply(bytes), "a reply belongs to one handshake");
    assert!(!(is_new(&EAVESDROPPER.hello) && EAVESDROPPER.accepts_hello(bytes)));
});
