//! Which crate may depend on which. Dependencies point downwards only.
//!
//! The table is the architecture: a new edge is a decision, made here and explained in the change.
//! Manifests are read as text, because the rule is about what a person wrote in them.
//! Dev-dependencies are free: a test may look at anything.

use super::{Finding, Tree};

/// Each crate with the crates it may use. A row uses only crates of rows above it.
const EDGES: &[(&str, &str)] = &[
    ("config", ""),
    ("platform", ""),
    ("plot", ""),
    ("mesh", ""),
    ("schedule", "config mesh"),
    ("tensor", ""),
    ("auth", "platform"),
    ("mpi", "platform"),
    ("comm", "config platform mesh schedule tensor auth mpi"),
    ("bench", "config platform schedule comm"),
    ("conformance", "config platform mesh schedule comm"),
    ("cluster", "config platform mesh auth mpi comm"),
    ("telemetry", "platform"),
    ("dashboard", "platform plot telemetry"),
    ("model", "config tensor"),
    ("optim", "config platform tensor"),
    ("data", "config platform tensor auth"),
    ("checkpoint", "config platform tensor"),
    ("sweep", "config platform tensor checkpoint"),
    // Strategies record events of their own, which no other crate needs to know.
    ("parallel", "config platform mesh schedule tensor comm telemetry model optim"),
    ("planner", "config plot mesh schedule model parallel"),
    ("lab", "config platform plot mesh schedule tensor comm optim parallel planner"),
    (
        "trainer",
        "config platform schedule tensor comm telemetry model optim data checkpoint parallel",
    ),
    (
        "cli",
        "config platform mesh schedule tensor comm bench cluster telemetry dashboard model optim \
         data checkpoint parallel planner plot lab sweep trainer",
    ),
    (
        "harness",
        "config platform mesh schedule tensor comm conformance cluster telemetry model optim data \
         checkpoint parallel planner trainer cli",
    ),
];

/// Every member's edges and lints, and every row of the table against the members that exist.
pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in tree.texts_ending("/Cargo.toml") {
        findings.extend(check_lints(path, text));
        if let Some(folder) = crate_folder(path) {
            findings.extend(check_edges(path, folder, text));
        }
    }
    for (name, _) in EDGES {
        if !tree.paths.contains(&format!("crates/{name}/Cargo.toml")) {
            let rule = format!("the table of edges names {name}, which is no crate");
            findings.push(Finding::new("xtask/src/tidy/edges.rs", 1, rule));
        }
    }
    findings
}

/// `config` for `crates/config/Cargo.toml`; nothing for manifests elsewhere.
fn crate_folder(path: &str) -> Option<&str> {
    path.strip_prefix("crates/")?.strip_suffix("/Cargo.toml")
}

fn check_edges(path: &str, folder: &str, text: &str) -> Vec<Finding> {
    let Some((_, allowed)) = EDGES.iter().find(|(name, _)| *name == folder) else {
        let rule = format!("{folder} has no row in the table of edges (xtask/src/tidy/edges.rs)");
        return vec![Finding::new(path, 1, rule)];
    };
    let allowed: Vec<&str> = allowed.split_whitespace().collect();
    let list = if allowed.is_empty() { "no crate of ours".into() } else { allowed.join(", ") };
    dependencies(text)
        .into_iter()
        .filter(|(_, used)| !allowed.contains(&used.as_str()))
        .map(|(line, used)| {
            Finding::new(path, line, format!("{folder} may use {list}, but names {used}"))
        })
        .collect()
}

/// Our own crates in the dependency sections of a manifest, each with its line.
fn dependencies(manifest: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut inside = false;
    for (index, line) in manifest.lines().enumerate() {
        let line = line.split('#').next().unwrap_or("").trim();
        if let Some(header) = line.strip_prefix('[') {
            let header = header.trim_end_matches(']');
            // `[dependencies.NAME]`, and the sections of one target, are dependencies as well.
            inside = header
                .split('.')
                .any(|part| matches!(part.trim(), "dependencies" | "build-dependencies"));
        }
        if inside {
            found.extend(our_crates(line).map(|name| (index + 1, name)));
        }
    }
    found
}

/// Every `lockstep-NAME` of a line, once each: as key, as header or behind `package =`.
fn our_crates(line: &str) -> impl Iterator<Item = String> {
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    let mut names: Vec<String> = line
        .split(|c| !is_name(c))
        .filter_map(|word| word.strip_prefix("lockstep-"))
        .map(str::to_owned)
        .collect();
    names.sort();
    names.dedup();
    names.into_iter()
}

fn check_lints(path: &str, manifest: &str) -> Option<Finding> {
    let mut section = String::new();
    for line in manifest.lines() {
        let line: String = line.split('#').next().unwrap_or("").split_whitespace().collect();
        if line.starts_with('[') {
            // A package that stands apart, as the fuzzer's does, has no workspace to ask.
            if line == "[workspace]" {
                return None;
            }
            section = line;
        } else if (section == "[lints]" && line == "workspace=true")
            || (section.is_empty() && line == "lints.workspace=true")
        {
            return None;
        }
    }
    Some(Finding::new(path, 1, "the member lacks `[lints] workspace = true`"))
}

#[cfg(test)]
mod tests {
    use super::super::tests::tree;
    use super::*;

    const LINTS: &str = "[lints]\nworkspace = true\n";

    /// The findings of one manifest, without those for crates this tree does not have.
    fn findings_of(folder: &str, manifest: &str) -> Vec<(usize, String)> {
        let path = format!("crates/{folder}/Cargo.toml");
        let text = format!("{LINTS}{manifest}");
        let findings = check(&tree(&[(&path, &text)]));
        findings.into_iter().filter(|f| f.path == path).map(|f| (f.line, f.rule)).collect()
    }

    #[test]
    fn an_allowed_edge_passes() {
        let manifest = "[dependencies]\nlockstep-config.workspace = true\nserde = \"1\"\n";
        assert_eq!(findings_of("model", manifest), []);
    }

    #[test]
    fn a_forbidden_edge_is_found_at_its_line() {
        let manifest = "[dependencies]\nserde = \"1\"\nlockstep-platform.workspace = true\n";
        let rule = "model may use config, tensor, but names platform".to_owned();
        assert_eq!(findings_of("model", manifest), [(5, rule)]);
    }

    #[test]
    fn an_edge_cannot_hide_in_another_spelling() {
        for manifest in [
            "[dependencies.lockstep-trainer]\nworkspace = true\n",
            "[target.'cfg(unix)'.dependencies]\nlockstep-trainer = { path = \"../trainer\" }\n",
            "[build-dependencies]\nlockstep-trainer.workspace = true\n",
            "[dependencies]\nspine = { package = \"lockstep-trainer\", path = \"../trainer\" }\n",
        ] {
            let findings = findings_of("config", manifest);
            assert_eq!(findings.len(), 1, "{manifest}{findings:?}");
            assert!(findings[0].1.ends_with("but names trainer"), "{findings:?}");
        }
    }

    #[test]
    fn dev_dependencies_and_comments_are_free() {
        let manifest = "[dependencies]\n# lockstep-cli\n[dev-dependencies]\nlockstep-cli = \"1\"\n";
        assert_eq!(findings_of("config", manifest), []);
    }

    #[test]
    fn a_crate_without_a_row_and_a_row_without_a_crate_are_found() {
        let findings = findings_of("attic", "");
        assert!(findings[0].1.starts_with("attic has no row"), "{findings:?}");
        let all = check(&tree(&[]));
        assert_eq!(all.len(), EDGES.len());
    }

    #[test]
    fn a_member_without_the_workspace_lints_is_found() {
        let missing = check_lints("a/Cargo.toml", "[package]\nname = \"a\"\n[lints]\n");
        assert!(missing.is_some());
        let elsewhere = check_lints("a/Cargo.toml", "[package.lints]\nworkspace = true\n");
        assert!(elsewhere.is_some());
        assert_eq!(check_lints("a/Cargo.toml", LINTS), None);
        assert_eq!(check_lints("a/Cargo.toml", "lints.workspace = true\n[package]\n"), None);
    }

    #[test]
    fn the_table_points_downwards_only() {
        for (row, (name, allowed)) in EDGES.iter().enumerate() {
            for used in allowed.split_whitespace() {
                let above = EDGES[..row].iter().any(|(other, _)| *other == used);
                assert!(above, "{name} uses {used}, which is not above it");
            }
        }
    }
}
