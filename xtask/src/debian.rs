//! Programs from Debian's packages, for steps of CI that need more than the Rust toolchain.

use std::process::Command;

use crate::shell;

/// Seconds that an installation may take.
const INSTALL_SECONDS: &str = "150";

/// The programs that cannot be started.
pub(crate) fn absent<'a>(programs: &[&'a str]) -> Vec<&'a str> {
    let is_absent = |name: &&str| !shell::succeeds(Command::new(name).arg("--version"));
    programs.iter().copied().filter(is_absent).collect()
}

/// Installs packages where `apt-get` can; [`absent`] tells afterwards whether it succeeded.
pub(crate) fn install(packages: &[&str]) {
    let apt = |arguments: &[&str]| {
        let options = ["-o", "Acquire::Retries=1", "-o", "Acquire::http::Timeout=20", "-y", "-q"];
        let mut command = Command::new("timeout");
        command.args([INSTALL_SECONDS, "apt-get"]).args(options).args(arguments);
        command.env("DEBIAN_FRONTEND", "noninteractive");
        shell::succeeds(&mut command)
    };
    shell::say(&format!("   $ apt-get install {}", packages.join(" ")));
    let install = [&["install", "--no-install-recommends"][..], packages].concat();
    if !apt(&["update"]) || !apt(&install) {
        shell::say("   they could not be installed");
    }
}
