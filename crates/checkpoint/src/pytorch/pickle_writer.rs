//! Writer of Python pickles, protocol 2: plain data and instances of classes.

/// A pickle that is being written.
pub(super) struct PickleWriter {
    bytes: Vec<u8>,
}

impl PickleWriter {
    /// The pickle of the value that `write` writes.
    pub(super) fn pickle(write: impl FnOnce(&mut Self)) -> Vec<u8> {
        let mut writer = Self { bytes: vec![0x80, 2] };
        write(&mut writer);
        writer.bytes.push(b'.');
        writer.bytes
    }

    pub(super) fn none(&mut self) {
        self.bytes.push(b'N');
    }

    pub(super) fn boolean(&mut self, value: bool) {
        self.bytes.push(if value { 0x88 } else { 0x89 });
    }

    /// A non-negative integer.
    pub(super) fn count(&mut self, value: u64) {
        if let Ok(value) = u8::try_from(value) {
            self.bytes.extend([b'K', value]);
        } else {
            let value = i64::try_from(value).expect("sizes and offsets are smaller");
            self.bytes.extend([0x8a, 8]);
            self.bytes.extend(value.to_le_bytes());
        }
    }

    pub(super) fn text(&mut self, text: &str) {
        self.bytes.push(b'X');
        let len = u32::try_from(text.len()).expect("names are short");
        self.bytes.extend(len.to_le_bytes());
        self.bytes.extend(text.as_bytes());
    }

    pub(super) fn tuple(&mut self, elements: impl FnOnce(&mut Self)) {
        self.bytes.push(b'(');
        elements(self);
        self.bytes.push(b't');
    }

    /// A tuple of non-negative integers.
    pub(super) fn counts(&mut self, values: &[usize]) {
        self.tuple(|writer| values.iter().for_each(|value| writer.count(*value as u64)));
    }

    pub(super) fn list(&mut self, elements: impl FnOnce(&mut Self)) {
        self.bytes.extend(b"](");
        elements(self);
        self.bytes.push(b'e');
    }

    /// A dictionary; `entries` writes keys and values in turn.
    pub(super) fn dict(&mut self, entries: impl FnOnce(&mut Self)) {
        self.bytes.extend(b"}(");
        entries(self);
        self.bytes.push(b'u');
    }

    /// A class or function.
    pub(super) fn global(&mut self, module: &str, name: &str) {
        self.bytes.push(b'c');
        for line in [module, name] {
            self.bytes.extend(line.as_bytes());
            self.bytes.push(b'\n');
        }
    }

    /// A call with these arguments.
    pub(super) fn call(&mut self, module: &str, name: &str, arguments: impl FnOnce(&mut Self)) {
        self.global(module, name);
        self.tuple(arguments);
        self.bytes.push(b'R');
    }

    /// An instance of a class with the state that `state` writes.
    pub(super) fn instance(&mut self, module: &str, name: &str, state: impl FnOnce(&mut Self)) {
        self.global(module, name);
        self.bytes.extend([b')', 0x81]);
        state(self);
        self.bytes.push(b'b');
    }

    /// A reference to what lies outside of the pickle.
    pub(super) fn persistent(&mut self, id: impl FnOnce(&mut Self)) {
        id(self);
        self.bytes.push(b'Q');
    }

    /// A `torch.Size`.
    pub(super) fn size(&mut self, shape: &[usize]) {
        self.call("torch", "Size", |writer| writer.counts(shape));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pytorch::pickle::Pickle;

    #[test]
    fn what_is_written_is_read_back() {
        let counts = [0, 1, 255, 256, 1 << 31, 1 << 40, i64::MAX as usize];
        let bytes = PickleWriter::pickle(|writer| {
            writer.dict(|writer| {
                writer.text("counts");
                writer.counts(&counts);
                writer.text("list");
                writer.list(|writer| {
                    writer.none();
                    writer.boolean(true);
                    writer.size(&[3, 4]);
                });
                writer.text("object");
                writer.instance("a.b", "C", |writer| {
                    writer.dict(|writer| {
                        writer.text("x");
                        writer.count(7);
                    });
                });
            });
        });
        let pickle = Pickle::parse(&bytes).unwrap();
        let root = pickle.root();
        assert_eq!(root.get("counts").unwrap().counts().unwrap(), counts);
        let list = root.get("list").unwrap().elements().unwrap();
        assert!(list[0].is_none());
        assert_eq!(list[2].counts().unwrap(), [3, 4]);
        let state = root.get("object").unwrap().instance_of("C").unwrap();
        assert_eq!(state.get("x").unwrap().count(), Some(7));
    }
}
