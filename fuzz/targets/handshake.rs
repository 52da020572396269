//! Both sides of the handshake: nobody without the secret is taken for somebody who has it.

#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use lockstep_auth::hostile::Eavesdropper;
use lockstep_cluster::rendezvous::hostile::samples;

static BETWEEN: LazyLock<Eavesdropper> =
    LazyLock::new(|| Eavesdropper::new(&lockstep_platform::real(), &samples()[0]));

fuzz_target!(|bytes: &[u8]| {
    let is_new = |said: &[u8]| bytes != said;
    assert!(!(is_new(&BETWEEN.greeting) && BETWEEN.greets(bytes)));
    assert!(!BETWEEN.replies(bytes), "a reply is to one call only");
    assert!(!(is_new(&BETWEEN.hello) && BETWEEN.says_hello(bytes)));
});
