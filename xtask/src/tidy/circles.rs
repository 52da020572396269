//! No circle of `use` between the files of a crate.
//!
//! Files that use each other in a circle can only be understood, moved and tested together. An
//! edge is a path in a `use` or in code that leads to another file of the crate, followed through
//! re-exports to the file that defines the item. A parent module may use its own children freely,
//! so those edges do not count; test modules do not count either. What is left must be acyclic.

use std::collections::{BTreeMap, BTreeSet};

use super::lexer::{is_word, mask};
use super::{Finding, Tree};

/// The path of a module inside its crate; the root is empty.
type Module = Vec<String>;

/// Every circle of every crate, reported at its first file.
pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let mut crates: BTreeMap<&str, BTreeMap<Module, (&str, Source)>> = BTreeMap::new();
    for (path, text) in tree.texts_ending(".rs") {
        let Some((root, inside)) = path.split_once("/src/") else { continue };
        let source = Source::read(text);
        crates.entry(root).or_default().insert(module_of(inside), (path, source));
    }
    crates.values().flat_map(circles_of_crate).collect()
}

fn circles_of_crate(files: &BTreeMap<Module, (&str, Source)>) -> Vec<Finding> {
    let edges: BTreeMap<&Module, BTreeSet<Module>> =
        files.keys().map(|module| (module, edges_of(files, module))).collect();
    strongly_connected(&edges)
        .into_iter()
        .map(|circle| {
            let names: Vec<String> = circle.iter().map(|module| module.join("/")).collect();
            let rule = format!("files use each other in a circle: {}", names.join(", "));
            Finding::new(files[circle[0]].0, 1, rule)
        })
        .collect()
}

/// `a/b.rs` and `a/b/mod.rs` are both the module `a::b`.
fn module_of(inside: &str) -> Module {
    let mut module: Module = inside.trim_end_matches(".rs").split('/').map(Into::into).collect();
    if matches!(module.last().map(String::as_str), Some("mod" | "lib" | "main")) {
        module.pop();
    }
    module
}

/// The paths that a file names.
struct Source {
    /// Every path of a `use`, and every path with `::` in the rest of the code.
    paths: Vec<Vec<String>>,
    /// The names that its `use` declarations bring into the module, which others may reach
    /// through it.
    imports: BTreeMap<String, Vec<String>>,
}

impl Source {
    fn read(text: &str) -> Self {
        let code = without_tests(&mask(text).code);
        let mut source = Self { paths: Vec::new(), imports: BTreeMap::new() };
        let mut rest = String::new();
        let mut at = 0;
        for (start, end) in use_declarations(&code) {
            rest.push_str(&code[at..start]);
            source.import(&[], &code[start + "use".len()..end]);
            at = end;
        }
        rest.push_str(&code[at..]);
        let paths = rest.split(|c: char| !is_word(c) && c != ':');
        for path in paths.filter(|path| path.contains("::")) {
            let segments: Vec<String> =
                path.split("::").filter(|s| !s.is_empty()).map(Into::into).collect();
            if segments.len() > 1 {
                source.paths.push(segments);
            }
        }
        source
    }

    /// One tree of a `use`: `a::{b, c as d}` is the paths `a::b` and `a::c`.
    fn import(&mut self, prefix: &[String], tree: &str) {
        let tree = tree.trim();
        if let Some((head, list)) = tree.split_once('{') {
            let prefix = join(prefix, head);
            let list = list.strip_suffix('}').unwrap_or(list);
            let mut depth = 0;
            for part in list.split(|c| {
                depth += i32::from(c == '{') - i32::from(c == '}');
                c == ',' && depth == 0
            }) {
                if !part.trim().is_empty() {
                    self.import(&prefix, part);
                }
            }
            return;
        }
        let (path, alias) = tree.split_once(" as ").unwrap_or((tree, ""));
        let mut path = join(prefix, path);
        if path.last().is_some_and(|last| last == "self") {
            path.pop();
        }
        let Some(last) = path.last() else { return };
        let name = if alias.is_empty() { last.clone() } else { alias.trim().to_owned() };
        self.imports.insert(name, path.clone());
        self.paths.push(path);
    }
}

fn join(prefix: &[String], path: &str) -> Vec<String> {
    let path = path.split("::").map(str::trim).filter(|segment| !segment.is_empty());
    prefix.iter().cloned().chain(path.map(Into::into)).collect()
}

/// From each `use` to its semicolon.
fn use_declarations(code: &str) -> Vec<(usize, usize)> {
    let starts = code.match_indices("use").map(|(at, _)| at);
    let is_word_at = |at: Option<usize>| {
        at.and_then(|at| code.as_bytes().get(at)).is_some_and(|&byte| is_word(byte.into()))
    };
    let whole = starts.filter(|&at| !is_word_at(at.checked_sub(1)) && !is_word_at(Some(at + 3)));
    whole.filter_map(|at| Some((at, at + code[at..].find(';')?))).collect()
}

/// The code without the items under `#[cfg(test)]`, which may use anything.
pub(super) fn without_tests(code: &str) -> String {
    let mut kept = String::new();
    let mut rest = code;
    while let Some(at) =
        ["#[cfg(test)]", "#[cfg(all(test"].iter().filter_map(|mark| rest.find(mark)).min()
    {
        kept.push_str(&rest[..at]);
        rest = &rest[at..];
        let item = rest.find(']').map_or("", |end| &rest[end + 1..]);
        let skipped = rest.len() - item.len();
        let semicolon = item.find(';').unwrap_or(item.len());
        let brace = item.find('{').unwrap_or(item.len());
        let len =
            if semicolon < brace { semicolon + 1 } else { brace + braces_len(&item[brace..]) };
        rest = &rest[skipped + len.min(item.len())..];
    }
    kept.push_str(rest);
    kept
}

/// The length of a balanced block that starts with a brace.
fn braces_len(code: &str) -> usize {
    let mut depth = 0;
    for (at, c) in code.char_indices() {
        depth += i32::from(c == '{') - i32::from(c == '}');
        if depth == 0 && c == '}' {
            return at + 1;
        }
    }
    code.len()
}

/// The files that a module uses, without its own children.
fn edges_of(files: &BTreeMap<Module, (&str, Source)>, module: &Module) -> BTreeSet<Module> {
    let paths = &files[module].1.paths;
    let targets = paths.iter().filter_map(|path| resolve(files, module, path, 0));
    let is_child =
        |target: &Module| target.len() == module.len() + 1 && target[..module.len()] == module[..];
    targets.filter(|target| target != module && !is_child(target)).collect()
}

/// The file that defines a path named in `from`, through re-exports.
fn resolve(
    files: &BTreeMap<Module, (&str, Source)>,
    from: &Module,
    path: &[String],
    depth: usize,
) -> Option<Module> {
    if depth > 8 {
        return None;
    }
    let mut module = from.clone();
    let mut rest = path;
    match rest.first()?.as_str() {
        "crate" => (module, rest) = (Module::new(), &rest[1..]),
        "self" => rest = &rest[1..],
        "super" => {
            while rest.first().is_some_and(|segment| segment == "super") {
                module.pop();
                rest = &rest[1..];
            }
        }
        first => {
            let mut child = module.clone();
            child.push(first.to_owned());
            if !files.contains_key(&child) {
                let import = files[from].1.imports.get(first)?;
                let is_new = import.first().is_some_and(|segment| segment != first);
                let target: Vec<String> = import.iter().chain(&rest[1..]).cloned().collect();
                return is_new.then(|| resolve(files, from, &target, depth + 1)).flatten();
            }
        }
    }
    while let Some(segment) = rest.first() {
        let mut child = module.clone();
        child.push(segment.clone());
        if !files.contains_key(&child) {
            break;
        }
        (module, rest) = (child, &rest[1..]);
    }
    let source = &files.get(&module)?.1;
    if let Some(import) = rest.first().and_then(|name| source.imports.get(name))
        && module != *from
    {
        let target: Vec<String> = import.iter().chain(&rest[1..]).cloned().collect();
        // A re-export of another crate's item is no edge.
        return resolve(files, &module, &target, depth + 1);
    }
    Some(module)
}

/// The strongly connected components of more than one module (Tarjan 1972).
fn strongly_connected<'a>(edges: &BTreeMap<&'a Module, BTreeSet<Module>>) -> Vec<Vec<&'a Module>> {
    let mut search = Search { edges, order: BTreeMap::new(), stack: Vec::new(), found: Vec::new() };
    for module in edges.keys() {
        if !search.order.contains_key(module) {
            search.visit(module);
        }
    }
    search.found
}

struct Search<'e, 'a> {
    edges: &'e BTreeMap<&'a Module, BTreeSet<Module>>,
    /// When a module was first visited; absent before, `usize::MAX` once its component is closed.
    order: BTreeMap<&'a Module, usize>,
    stack: Vec<&'a Module>,
    found: Vec<Vec<&'a Module>>,
}

impl<'a> Search<'_, 'a> {
    /// Returns the earliest module on the stack that is reachable from this one.
    fn visit(&mut self, module: &'a Module) -> usize {
        let number = self.order.len();
        self.order.insert(module, number);
        self.stack.push(module);
        let mut lowest = number;
        for target in &self.edges[module] {
            let Some((&target, _)) = self.edges.get_key_value(target) else { continue };
            let reached = match self.order.get(target) {
                Some(&order) => order,
                None => self.visit(target),
            };
            lowest = lowest.min(reached);
        }
        if lowest == number {
            let start = self.stack.iter().position(|&other| other == module).expect("on the stack");
            let mut component = self.stack.split_off(start);
            for &member in &component {
                self.order.insert(member, usize::MAX);
            }
            component.sort();
            if component.len() > 1 {
                self.found.push(component);
            }
            return usize::MAX;
        }
        lowest
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::tree;
    use super::*;

    fn circles(files: &[(&str, &str)]) -> Vec<String> {
        let paths: Vec<String> =
            files.iter().map(|(path, _)| format!("crates/x/src/{path}")).collect();
        let files: Vec<(&str, &str)> =
            paths.iter().zip(files).map(|(path, (_, text))| (path.as_str(), *text)).collect();
        check(&tree(&files)).into_iter().map(|finding| finding.rule).collect()
    }

    #[test]
    fn two_files_that_use_each_other_are_a_circle() {
        let found = circles(&[
            ("lib.rs", "mod a;\nmod b;\n"),
            ("a.rs", "use crate::b::B;\n"),
            ("b.rs", "fn f() { crate::a::g() }\n"),
        ]);
        assert_eq!(found, ["files use each other in a circle: a, b"]);
    }

    #[test]
    fn a_circle_is_followed_through_re_exports() {
        let found = circles(&[
            ("lib.rs", "mod a;\nmod b;\npub use b::{B, C as D};\n"),
            ("a.rs", "use crate::{B as Other, std::x};\n"),
            ("b.rs", "use super::a;\n"),
        ]);
        assert_eq!(found.len(), 1, "{found:?}");
    }

    #[test]
    fn a_parent_may_use_its_children_and_they_it() {
        let files = [
            ("lib.rs", "mod a;\n"),
            ("a/mod.rs", "mod b;\nuse b::B;\npub struct A;\n"),
            ("a/b.rs", "use super::A;\n"),
        ];
        assert_eq!(circles(&files), [] as [&str; 0]);
    }

    #[test]
    fn tests_comments_and_other_crates_are_no_edges() {
        let files = [
            ("lib.rs", "mod a;\nmod b;\n"),
            ("a.rs", "use crate::b::B;\n"),
            ("b.rs", "// crate::a\nuse std::mem;\n#[cfg(test)]\nmod tests {\n use crate::a;\n}\n"),
        ];
        assert_eq!(circles(&files), [] as [&str; 0]);
    }

    #[test]
    fn longer_circles_are_found_whole() {
        let found = circles(&[
            ("lib.rs", ""),
            ("a.rs", "use crate::b;\n"),
            ("b.rs", "use crate::c::{x, y};\n"),
            ("c.rs", "use crate::a::{self, z};\nuse crate::d;\n"),
            ("d.rs", ""),
        ]);
        assert_eq!(found, ["files use each other in a circle: a, b, c"]);
    }
}
