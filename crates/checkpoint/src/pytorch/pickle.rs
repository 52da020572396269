//! Reader of Python pickles that executes nothing: objects stay plain data.
//!
//! `pickle.load` calls whatever a file names. Here a class or a function is only its name, a call
//! is a [`Node::Object`] of that name with its arguments, and the reader of the result decides
//! which names mean something. Nodes are numbered and refer to one another by number, so that
//! shared and even circular references need no recursion. Every opcode makes at most one node and
//! takes at least one byte, so memory is proportional to the file.
//!
//! Read are the opcodes that protocols 2 to 5 write for plain data and instances
//! (<https://docs.python.org/3/library/pickletools.html>).

use std::collections::BTreeMap;

/// Number of a node.
type Id = usize;

/// A value of a pickle.
#[derive(Debug)]
enum Node {
    None,
    Bool,
    Int(i64),
    Float(f64),
    Text(String),
    Bytes,
    /// A tuple, a list or a set.
    Sequence(Vec<Id>),
    Dict(Vec<(Id, Id)>),
    /// A class or function: module and name.
    Global(String, String),
    /// Result of calling a global, and what is added to it afterwards.
    Object(Object),
    /// Reference to something outside of the pickle.
    Persistent(Id),
    /// Start of a group on the stack.
    Mark,
}

#[derive(Debug)]
struct Object {
    class: Id,
    arguments: Id,
    state: Option<Id>,
    items: Vec<(Id, Id)>,
}

/// A parsed pickle.
#[derive(Debug)]
pub(super) struct Pickle {
    nodes: Vec<Node>,
    root: Id,
}

/// A value in a pickle.
#[derive(Clone, Copy)]
pub(super) struct Value<'a> {
    pickle: &'a Pickle,
    id: Id,
}

impl Pickle {
    /// Parses a pickle, which may be followed by other bytes.
    pub(super) fn parse(bytes: &[u8]) -> Result<Self, String> {
        let mut machine =
            Machine { bytes, at: 0, nodes: Vec::new(), stack: Vec::new(), memo: BTreeMap::new() };
        let root = machine.run()?;
        Ok(Self { nodes: machine.nodes, root })
    }

    /// The value that `pickle.load` would return.
    pub(super) fn root(&self) -> Value<'_> {
        Value { pickle: self, id: self.root }
    }
}

impl<'a> Value<'a> {
    fn node(self) -> &'a Node {
        &self.pickle.nodes[self.id]
    }

    fn at(self, id: Id) -> Self {
        Self { id, ..self }
    }

    /// Text of a string.
    pub(super) fn text(self) -> Option<&'a str> {
        match self.node() {
            Node::Text(text) => Some(text),
            _ => None,
        }
    }

    /// Value of a non-negative integer.
    pub(super) fn count(self) -> Option<usize> {
        match self.node() {
            Node::Int(value) => usize::try_from(*value).ok(),
            _ => None,
        }
    }

    /// Value of a number.
    pub(super) fn number(self) -> Option<f64> {
        match self.node() {
            Node::Int(value) => Some(*value as f64),
            Node::Float(value) => Some(*value),
            _ => None,
        }
    }

    /// Elements of a tuple or list.
    pub(super) fn elements(self) -> Option<Vec<Self>> {
        match self.node() {
            Node::Sequence(ids) => Some(ids.iter().map(|id| self.at(*id)).collect()),
            _ => None,
        }
    }

    /// Non-negative integers of a tuple, a list or a `torch.Size`.
    pub(super) fn counts(self) -> Option<Vec<usize>> {
        if let Some([sizes]) = self.call_of("torch", "Size").as_deref() {
            return sizes.elements()?.into_iter().map(Self::count).collect();
        }
        self.elements()?.into_iter().map(Self::count).collect()
    }

    /// Entries of a dictionary or an `OrderedDict`.
    pub(super) fn entries(self) -> Option<Vec<(Self, Self)>> {
        let entries = match self.node() {
            Node::Dict(entries) => entries,
            Node::Object(object) => &object.items,
            _ => return None,
        };
        Some(entries.iter().map(|(key, value)| (self.at(*key), self.at(*value))).collect())
    }

    /// Value of a key that is text.
    pub(super) fn get(self, key: &str) -> Option<Self> {
        let found = self.entries()?.into_iter().find(|(name, _)| name.text() == Some(key));
        found.map(|(_, value)| value)
    }

    /// Module and name of a class or function.
    pub(super) fn global(self) -> Option<(&'a str, &'a str)> {
        match self.node() {
            Node::Global(module, name) => Some((module.as_str(), name.as_str())),
            _ => None,
        }
    }

    /// Arguments, where the value is a call of this function or class.
    pub(super) fn call_of(self, module: &str, name: &str) -> Option<Vec<Self>> {
        let Node::Object(object) = self.node() else { return None };
        if self.at(object.class).global() != Some((module, name)) {
            return None;
        }
        self.at(object.arguments).elements()
    }

    /// State of an instance of a class with this name.
    pub(super) fn instance_of(self, name: &str) -> Option<Self> {
        let Node::Object(object) = self.node() else { return None };
        let class = self.at(object.class).global()?;
        object.state.filter(|_| class.1 == name).map(|state| self.at(state))
    }

    /// Reference to something outside of the pickle.
    pub(super) fn persistent(self) -> Option<Self> {
        match self.node() {
            Node::Persistent(id) => Some(self.at(*id)),
            _ => None,
        }
    }

    /// Whether it is `None`.
    pub(super) fn is_none(self) -> bool {
        matches!(self.node(), Node::None)
    }
}

/// The stack machine that a pickle is a program for.
struct Machine<'a> {
    bytes: &'a [u8],
    at: usize,
    nodes: Vec<Node>,
    stack: Vec<Id>,
    memo: BTreeMap<u32, Id>,
}

impl Machine<'_> {
    fn run(&mut self) -> Result<Id, String> {
        loop {
            let opcode = self.take(1)?[0];
            match opcode {
                b'.' => return self.pop(),
                // PROTO and FRAME say nothing that is needed here.
                0x80 => self.skip(1)?,
                0x95 => self.skip(8)?,
                b'(' => self.push(Node::Mark),
                b'0' => drop(self.pop()?),
                b'1' => drop(self.pop_to_mark()?),
                b'2' => {
                    let top = self.top()?;
                    self.stack.push(top);
                }
                b'N' | 0x88 | 0x89 | b'K' | b'M' | b'J' | 0x8a | b'G' => self.scalar(opcode)?,
                b'X' | 0x8c | 0x8d | b'B' | b'C' | 0x8e | 0x96 => self.string(opcode)?,
                b')' | b']' | 0x8f | b'}' | b't' | b'l' | 0x85..=0x87 => self.container(opcode)?,
                b'a' | b'e' | 0x90 | b's' | b'u' => self.fill(opcode)?,
                b'c' | 0x93 | b'R' | 0x81 | 0x92 | b'b' | b'Q' => self.object(opcode)?,
                b'h' | b'j' | b'q' | b'r' | 0x94 => self.memo(opcode)?,
                _ => {
                    return Err(format!(
                        "opcode {opcode:#04x} at byte {} is not read",
                        self.at - 1
                    ));
                }
            }
        }
    }

    fn scalar(&mut self, opcode: u8) -> Result<(), String> {
        let node = match opcode {
            b'N' => Node::None,
            0x88 | 0x89 => Node::Bool,
            b'K' => Node::Int(self.integer(1)?),
            b'M' => Node::Int(self.integer(2)?),
            b'J' => {
                // The four bytes are signed.
                let value = self.integer(4)? as u32;
                Node::Int(i64::from(value.cast_signed()))
            }
            0x8a => {
                let len = self.integer(1)? as usize;
                Node::Int(signed(self.take(len)?)?)
            }
            _ => {
                let bytes = self.take(8)?.try_into().expect("eight bytes");
                Node::Float(f64::from_be_bytes(bytes))
            }
        };
        self.push(node);
        Ok(())
    }

    fn string(&mut self, opcode: u8) -> Result<(), String> {
        let width = match opcode {
            0x8c | b'C' => 1,
            b'X' | b'B' => 4,
            _ => 8,
        };
        let len = usize::try_from(self.integer(width)?).map_err(|_| "a string is too long")?;
        let bytes = self.take(len)?;
        let node = match opcode {
            b'B' | b'C' | 0x8e | 0x96 => Node::Bytes,
            _ => {
                let text = std::str::from_utf8(bytes).map_err(|_| "a string is not UTF-8")?;
                Node::Text(text.to_owned())
            }
        };
        self.push(node);
        Ok(())
    }

    fn container(&mut self, opcode: u8) -> Result<(), String> {
        let node = match opcode {
            b'}' => Node::Dict(Vec::new()),
            b')' | b']' | 0x8f => Node::Sequence(Vec::new()),
            b't' | b'l' => Node::Sequence(self.pop_to_mark()?),
            _ => {
                let len = usize::from(opcode - 0x84);
                let start = self.stack.len().checked_sub(len).ok_or(UNDERFLOW)?;
                Node::Sequence(self.stack.split_off(start))
            }
        };
        self.push(node);
        Ok(())
    }

    /// Adds elements to the container on top of the stack.
    fn fill(&mut self, opcode: u8) -> Result<(), String> {
        let new = match opcode {
            b'a' => vec![self.pop()?],
            b's' => {
                let value = self.pop()?;
                vec![self.pop()?, value]
            }
            _ => self.pop_to_mark()?,
        };
        let top = self.top()?;
        match (&mut self.nodes[top], opcode) {
            (Node::Sequence(elements), b'a' | b'e' | 0x90) => elements.extend(new),
            (Node::Dict(entries) | Node::Object(Object { items: entries, .. }), b's' | b'u') => {
                let (pairs, rest) = new.as_chunks::<2>();
                if !rest.is_empty() {
                    return Err("a dictionary has a key without a value".to_owned());
                }
                entries.extend(pairs.iter().map(|[key, value]| (*key, *value)));
            }
            // Elements of a list of a class of its own are not needed.
            (Node::Object(_), _) => {}
            _ => return Err("elements are added to what is no container".to_owned()),
        }
        Ok(())
    }

    fn object(&mut self, opcode: u8) -> Result<(), String> {
        let node = match opcode {
            b'c' => {
                let module = self.line()?;
                Node::Global(module, self.line()?)
            }
            0x93 => {
                let (name, module) = (self.pop()?, self.pop()?);
                match (&self.nodes[module], &self.nodes[name]) {
                    (Node::Text(module), Node::Text(name)) => {
                        Node::Global(module.clone(), name.clone())
                    }
                    _ => return Err("a class has no name".to_owned()),
                }
            }
            b'Q' => Node::Persistent(self.pop()?),
            b'b' => {
                let state = self.pop()?;
                let top = self.top()?;
                if let Node::Object(object) = &mut self.nodes[top] {
                    object.state = Some(state);
                }
                return Ok(());
            }
            _ => {
                if opcode == 0x92 {
                    // Arguments by keyword.
                    self.pop()?;
                }
                let (arguments, class) = (self.pop()?, self.pop()?);
                Node::Object(Object { class, arguments, state: None, items: Vec::new() })
            }
        };
        self.push(node);
        Ok(())
    }

    fn memo(&mut self, opcode: u8) -> Result<(), String> {
        let key = match opcode {
            0x94 => self.memo.len() as u32,
            b'h' | b'q' => self.integer(1)? as u32,
            _ => self.integer(4)? as u32,
        };
        if matches!(opcode, b'h' | b'j') {
            let id = self.memo.get(&key).ok_or("it refers to a value that it does not have")?;
            self.stack.push(*id);
        } else {
            let top = self.top()?;
            self.memo.insert(key, top);
        }
        Ok(())
    }

    fn push(&mut self, node: Node) {
        self.stack.push(self.nodes.len());
        self.nodes.push(node);
    }

    fn pop(&mut self) -> Result<Id, String> {
        Ok(self.stack.pop().ok_or(UNDERFLOW)?)
    }

    fn top(&self) -> Result<Id, String> {
        Ok(*self.stack.last().ok_or(UNDERFLOW)?)
    }

    fn pop_to_mark(&mut self) -> Result<Vec<Id>, String> {
        let is_mark = |id: &Id| matches!(self.nodes[*id], Node::Mark);
        let mark = self.stack.iter().rposition(is_mark).ok_or(UNDERFLOW)?;
        let group = self.stack.split_off(mark + 1);
        self.stack.pop();
        Ok(group)
    }

    fn take(&mut self, len: usize) -> Result<&[u8], String> {
        let rest = &self.bytes[self.at..];
        let taken = rest.get(..len).ok_or("it is cut off")?;
        self.at += len;
        Ok(taken)
    }

    fn skip(&mut self, len: usize) -> Result<(), String> {
        self.take(len).map(|_| ())
    }

    /// Unsigned little-endian integer of up to eight bytes.
    fn integer(&mut self, width: usize) -> Result<i64, String> {
        let bytes = self.take(width)?;
        let value = bytes.iter().rev().fold(0_u64, |value, byte| value << 8 | u64::from(*byte));
        i64::try_from(value).map_err(|_| "an integer is too large".to_owned())
    }

    /// Text up to the end of the line.
    fn line(&mut self) -> Result<String, String> {
        let rest = &self.bytes[self.at..];
        let len = rest.iter().position(|byte| *byte == b'\n').ok_or("it is cut off")?;
        let line = String::from_utf8_lossy(&rest[..len]).into_owned();
        self.at += len + 1;
        Ok(line)
    }
}

const UNDERFLOW: &str = "it takes more values than it makes";

/// Two's complement little-endian integer.
fn signed(bytes: &[u8]) -> Result<i64, String> {
    let Some(last) = bytes.last() else { return Ok(0) };
    let sign = if last & 0x80 == 0 { 0 } else { 0xff };
    let mut all = [sign; 8];
    all.get_mut(..bytes.len()).ok_or("an integer is too large")?.copy_from_slice(bytes);
    Ok(i64::from_le_bytes(all))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `pickle.dumps({"a": [1, -2, 300, 2.5, None, True], "b": ("x", (), 2**40)}, protocol=4)`.
    const PLAIN: &[u8] =
        b"\x80\x04\x95>\x00\x00\x00\x00\x00\x00\x00}\x94(\x8c\x01a\x94]\x94(K\x01J\
        \xfe\xff\xff\xffM,\x01G@\x04\x00\x00\x00\x00\x00\x00N\x88e\x8c\x01b\x94\x8c\x01x\x94)\x8a\
        \x06\x00\x00\x00\x00\x00\x01\x87\x94u.";

    #[test]
    fn plain_data_is_read() {
        let pickle = Pickle::parse(PLAIN).unwrap();
        let a = pickle.root().get("a").unwrap().elements().unwrap();
        assert_eq!(
            a.iter().filter_map(|v| v.number()).collect::<Vec<_>>(),
            [1.0, -2.0, 300.0, 2.5]
        );
        assert!(a[4].is_none() && !a[5].is_none());
        let b = pickle.root().get("b").unwrap().elements().unwrap();
        assert_eq!((b[0].text(), b[2].count()), (Some("x"), Some(1 << 40)));
        assert!(b[1].elements().unwrap().is_empty());
    }

    #[test]
    fn a_call_is_a_name_with_arguments_and_runs_nothing() {
        // os.system("true")
        let pickle = Pickle::parse(b"\x80\x02cos\nsystem\nX\x04\x00\x00\x00true\x85R.").unwrap();
        let arguments = pickle.root().call_of("os", "system").unwrap();
        assert_eq!(arguments[0].text(), Some("true"));
        assert!(pickle.root().call_of("torch", "Size").is_none());
    }

    #[test]
    fn every_cut_and_every_flipped_byte_gives_an_error_or_a_value() {
        for len in 0..PLAIN.len() {
            assert!(Pickle::parse(&PLAIN[..len]).is_err(), "{len} bytes");
        }
        let mut bytes = PLAIN.to_vec();
        for place in 0..bytes.len() {
            for flip in [0x01, 0x80, 0xff] {
                bytes[place] ^= flip;
                let _ = Pickle::parse(&bytes);
                bytes[place] ^= flip;
            }
        }
    }

    #[test]
    fn a_length_beyond_the_end_is_an_error() {
        for bytes in
            [&b"X\xff\xff\xff\x7fab."[..], b"\x8d\xff\xff\xff\xff\xff\xff\xff\xffab.", b"h\x05."]
        {
            assert!(Pickle::parse(bytes).is_err(), "{bytes:?}");
        }
    }
}
