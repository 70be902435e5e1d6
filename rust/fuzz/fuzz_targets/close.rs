//! Input: dummy prefix or none, text, tokens (start, end, surface). Closed spans must cover the text in order, or the
//! offsets must be rejected.
#![no_main]

#[path = "../../core/tests/oracle/mod.rs"]
mod oracle;

use input::Input;
use libfuzzer_sys::fuzz_target;
use vocagno::Error;
use vocagno::spans::{DummyPrefix, PieceRole, PieceTable, chars_to_bytes, close_ids, restore_spaces};

fuzz_target!(|data: &[u8]| {
    let mut input = Input(data);
    let dummy = if input.byte() % 2 == 0 { DummyPrefix::None } else { DummyPrefix::Prepend };
    let text = input.text();
    let tokens = input.list(|input| (input.span(), input.bytes()));
    let offsets: Vec<_> = tokens.iter().map(|&(span, _)| span).collect();
    let ids: Vec<i32> = (0..oracle::index(tokens.len())).collect();
    let roles = vec![PieceRole::Plain; tokens.len()];
    let table = PieceTable::new(tokens.iter().map(|(_, piece)| Some(piece)), &roles, dummy);
    let table = table.expect("they fit");

    let Ok(before) = chars_to_bytes(&offsets, &text) else {
        return; // outside the text
    };
    let mut restored = before.clone();
    restore_spaces(&table, &ids, &text, &mut restored).expect("it fits");
    for (before, after) in before.iter().zip(&restored) {
        assert!(before[0] == before[1] || (after[0] <= before[0] && before[1] <= after[1]));
    }

    let mut closed = before.clone();
    match close_ids(&table, &ids, &mut closed, &text) {
        Ok(()) => {}
        Err(Error::Unsorted { .. }) => return,
        Err(error) => panic!("{error}"),
    }
    // Only the document's first token can be a lone dummy prefix.
    let prefix = |id: &i32| *id == 0 && dummy == DummyPrefix::Prepend && table.surface(*id) == Some(b" ");
    let filled: Vec<_> = closed.iter().filter(|[start, end]| start < end).collect();
    assert!(filled.windows(2).all(|pair| pair[0][0] <= pair[1][0] && pair[0][1] <= pair[1][1]), "{closed:?}");
    if !ids.iter().all(prefix) {
        assert!(oracle::covers(&closed, &text), "{closed:?} in {text:?}");
    }
    for (id, [start, end]) in ids.iter().zip(&closed) {
        assert!(start < end || text.is_empty() || prefix(id), "{closed:?}");
    }
});
