//! Files of a folder: weights, index, tokenizer, export.

use super::architecture::LLAMA;
use super::*;

#[test]
fn weights_come_from_one_file_or_from_those_of_the_index() {
    let fixture = Fixture::new();
    let folder = fixture.open().unwrap();
    assert_eq!(folder.tensors.names().collect::<Vec<_>>(), ["lm_head.weight", LLAMA.ends[0]]);

    fixture.world.files().remove_file(&fixture.path(FILE_NAME)).unwrap();
    fixture.store("a.safetensors", &["embed_tokens.weight", "rotary_emb.inv_freq"]);
    fixture.store("b.safetensors", &["lm_head.weight"]);
    let index = json!({"weight_map": {
        "embed_tokens.weight": "a.safetensors",
        "rotary_emb.inv_freq": "a.safetensors",
        "lm_head.weight": "b.safetensors",
    }});
    fixture.write(shards::INDEX, index.to_string().as_bytes());
    let folder = fixture.open().unwrap();
    assert_eq!(folder.tensors.names().collect::<Vec<_>>(), ["lm_head.weight", LLAMA.ends[0]]);
    let mut part = [0.0; 2];
    folder.tensors.read(LLAMA.ends[0], 1, &mut part).unwrap();
    assert_eq!(part.map(f32::to_bits), [TABLE[1], TABLE[2]].map(f32::to_bits));
}

#[test]
fn an_index_that_does_not_fit_its_files_is_refused() {
    let fixture = Fixture::new();
    fixture.world.files().remove_file(&fixture.path(FILE_NAME)).unwrap();
    fixture.store("a.safetensors", &["model.embed_tokens.weight", "lm_head.weight"]);
    let index = |map: Value| json!({"metadata": {"total_size": 32}, "weight_map": map}).to_string();
    for (text, line) in [
        ("{".to_owned(), "not an index of weights: EOF while parsing an object at line 1 column 1"),
        ("{}".to_owned(), "not an index of weights: missing field `weight_map` at line 1 column 2"),
        (index(json!({})), "not an index of weights: it names no tensor"),
        (
            index(json!({"x": "../a.safetensors"})),
            "not an index of weights: ../a.safetensors is not the name of a file beside it",
        ),
        (
            index(json!({"x": "a.safetensors"})),
            "it places tensor x in a.safetensors, which lacks it",
        ),
        (
            index(json!({"lm_head.weight": "a.safetensors"})),
            "it does not place tensor model.embed_tokens.weight in a.safetensors, which has it",
        ),
    ] {
        fixture.write(shards::INDEX, text.as_bytes());
        fixture.refused(&format!("{}: {line}", shards::INDEX));
    }
    fixture.write(shards::INDEX, index(json!({"x": "gone.safetensors"})).as_bytes());
    fixture.refused("cannot read gone.safetensors: no such file");
}

#[test]
fn files_that_are_cut_off_or_missing_are_named() {
    let fixture = Fixture::new();
    let good = fixture.world.files().read(&fixture.path(FILE_NAME)).unwrap();
    for end in [0, 7, 20, good.len() - 1] {
        fixture.write(FILE_NAME, &good[..end]);
        let lines = fixture.refusals();
        assert_eq!(lines.len(), 1);
        let start = "model.safetensors is not a whole safetensors file: ";
        assert!(lines[0].starts_with(start), "cut at {end}: {lines:?}");
    }
    fixture.world.files().remove_file(&fixture.path(FILE_NAME)).unwrap();
    let lines = fixture.refusals();
    assert!(
        lines[0].ends_with(
            "it holds no weights (no model.safetensors, no model.safetensors.index.json)"
        )
    );
    fixture.write("pytorch_model.bin", b"pickles");
    let lines = fixture.refusals();
    let end = "its weights are in pytorch_model.bin; save them as safetensors";
    assert!(lines[0].ends_with(end), "{lines:?}");
}

#[test]
fn missing_extra_misshapen_and_integer_tensors_are_named() {
    let fixture = Fixture::new();
    let needs = |names: &[(&str, [usize; 2])]| -> BTreeMap<String, Vec<usize>> {
        names.iter().map(|(name, shape)| ((*name).to_owned(), shape.to_vec())).collect()
    };
    let prove = |needed: &BTreeMap<String, Vec<usize>>| {
        let error = fixture.open().unwrap().prove(needed).unwrap_err();
        assert_eq!(error.blame(), Blame::User);
        error.to_string().replace(&fixture.scratch.path().display().to_string(), "F")
    };
    let both = [(LLAMA.ends[0], [2, 2]), ("lm_head.weight", [2, 2])];
    fixture.open().unwrap().prove(&needs(&both)).unwrap();
    let more = needs(&[both[0], both[1], ("model.norm.weight", [2, 2])]);
    assert_eq!(prove(&more), "F has no tensor model.norm.weight");
    let extra = "F/model.safetensors has a tensor lm_head.weight that the model lacks";
    assert_eq!(prove(&needs(&both[..1])), extra);
    let wider = needs(&[(LLAMA.ends[0], [2, 3]), both[1]]);
    let expected = "F/model.safetensors: tensor model.embed_tokens.weight has shape [2, 2], the \
                    model needs [2, 3]";
    assert_eq!(prove(&wider), expected);

    let header = r#"{"lm_head.weight":{"dtype":"I8","shape":[2,2],"data_offsets":[0,4]}}"#;
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(header.as_bytes());
    bytes.extend_from_slice(&[0; 4]);
    fixture.write(FILE_NAME, &bytes);
    let expected =
        "F/model.safetensors: tensor lm_head.weight has type I8; F32, BF16 and F16 can be read";
    assert_eq!(prove(&needs(&both[1..])), expected);
}

#[test]
fn a_name_with_and_without_its_prefix_is_one_parameter() {
    let fixture = Fixture::new();
    fixture.store(FILE_NAME, &["model.norm.weight", "norm.weight"]);
    fixture.refused(
        "model.safetensors: tensors norm.weight and model.norm.weight are one and the same \
         parameter",
    );
}

#[test]
fn a_tied_projection_may_be_stored_if_it_is_the_table() {
    let fixture = Fixture::new();
    fixture.configure(&with(llama(), "tie_word_embeddings", json!(true)));
    let folder = fixture.open().unwrap();
    assert_eq!(folder.tensors.names().collect::<Vec<_>>(), [LLAMA.ends[0]]);

    let mut bytes = fixture.world.files().read(&fixture.path(FILE_NAME)).unwrap();
    let last = bytes.last_chunk_mut().unwrap();
    *last = 5_f32.to_le_bytes();
    fixture.write(FILE_NAME, &bytes);
    let lines = fixture.refusals();
    assert!(
        lines[0].ends_with(
            "tie_word_embeddings = true, but lm_head.weight is not model.embed_tokens.weight from \
             element 3 on; set it to false"
        ),
        "{lines:?}"
    );
}

#[test]
fn a_tokenizer_of_another_vocabulary_is_refused() {
    let fixture = Fixture::new();
    let tokenizer = |vocab: Value, added: Value| {
        let model = json!({"type": "X", "vocab": vocab});
        json!({"version": "1.0", "added_tokens": added, "model": model})
    };
    let fits = tokenizer(json!({"a": 0, "b": 1}), json!([]));
    fixture.write(TOKENIZER, fits.to_string().as_bytes());
    fixture.open().unwrap();
    for (vocab, added) in [
        (json!({"a": 0, "b": 2}), json!([])),
        (json!([["a", -1.0], ["b", -2.0], ["c", -3.0]]), json!([])),
        (json!({"a": 0}), json!([{"id": 2, "content": "<end>", "special": true}])),
    ] {
        fixture.write(TOKENIZER, tokenizer(vocab, added).to_string().as_bytes());
        fixture.refused(
            "tokenizer.json: it makes 3 different tokens, but config.json has vocab_size = 2; use \
             the tokenizer that the model was trained with",
        );
    }
    fixture.write(TOKENIZER, b"[]");
    let lines = fixture.refusals();
    assert!(lines[0].starts_with("tokenizer.json: not a tokenizer: "), "{lines:?}");
}

#[test]
fn an_export_is_read_back_byte_for_byte_in_one_file_and_in_several() {
    let fixture = Fixture::new();
    let folder = fixture.open().unwrap();
    let outlines: BTreeMap<_, _> = folder
        .tensors
        .names()
        .map(|name| (name.to_owned(), folder.tensors.shape(name).unwrap().to_vec()))
        .collect();
    let companions = companions(&fixture.world, fixture.scratch.path());
    for (format, shard_bytes, num_files) in
        [(ElementType::F32, 1 << 20, 1), (ElementType::F32, 1, 2), (ElementType::Bf16, 8, 2)]
    {
        let out = fixture.path(&format!("out-{}-{shard_bytes}", format.name()));
        let export = Export {
            config: &folder.config,
            outlines: &outlines,
            format,
            shard_bytes,
            companions: &companions,
        };
        let read = |name: &str, out: &mut [f32]| folder.tensors.read(name, 0, out);
        let saved = save(&fixture.world, &out, &export, read).unwrap();
        assert_eq!(saved.files.len(), num_files);
        let reread = Folder::open(&fixture.world, &out).unwrap();
        assert_eq!(reread.config.model, folder.config.model);
        reread.prove(&outlines).unwrap();
        for name in outlines.keys() {
            let mut read = [0.0; 4];
            reread.tensors.read(name, 0, &mut read).unwrap();
            let expected = TABLE.map(|value| match format {
                ElementType::Bf16 => half::bf16::from_f32(value).to_f32(),
                _ => value,
            });
            assert_eq!(read.map(f32::to_bits), expected.map(f32::to_bits));
            assert_eq!(reread.tensors.format(name).unwrap(), format);
        }
        let file = WeightsFile::open(&fixture.world, &out.join(&saved.files[0])).unwrap();
        assert_eq!(file.metadata()["format"], "pt", "transformers insists on it");
    }
}

#[test]
fn an_export_overwrites_nothing_and_leaves_no_partial_folder() {
    let fixture = Fixture::new();
    let folder = fixture.open().unwrap();
    let outlines = BTreeMap::from([("lm_head.weight".to_owned(), vec![2, 2])]);
    let companions = Companions::default();
    let export = |format| Export {
        config: &folder.config,
        outlines: &outlines,
        format,
        shard_bytes: 100,
        companions: &companions,
    };
    let before = fixture.world.files().list(fixture.scratch.path()).unwrap();
    let constant = |value: f32| {
        move |_: &str, out: &mut [f32]| {
            out.fill(value);
            Ok::<_, CheckpointError>(())
        }
    };
    let taken = fixture.scratch.path();
    let error = save(&fixture.world, taken, &export(ElementType::F32), constant(1.0)).unwrap_err();
    assert_eq!(error, CheckpointError::FolderExists { path: taken.to_owned() });

    let out = fixture.path("out");
    let error = save(&fixture.world, &out, &export(ElementType::F16), constant(1e6)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "tensor lm_head.weight holds 1000000 at element 0, too large for f16; try --dtype f32"
    );
    assert_eq!(error.blame(), Blame::User);
    assert_eq!(fixture.world.files().list(fixture.scratch.path()).unwrap(), before);
}
