//! Input: dummy prefix (and 4 if bytes are dropped), pieces (role, bytes), text, ids. If spans are proved, the text must be
//! the concatenated pieces without dummy prefixes and special tokens that are not in it, apart from dropped bytes. Ids
//! must prove the text that they decode to.
#![no_main]

use input::Input;
use libfuzzer_sys::fuzz_target;
use vocagno::spans::{DummyPrefix, PieceRole, PieceTable, decode, spans_from_ids, spans_from_ids_into};

const DUMMIES: [DummyPrefix; 4] =
    [DummyPrefix::None, DummyPrefix::Prepend, DummyPrefix::Metaspace, DummyPrefix::MetaspaceFirst];

fuzz_target!(|data: &[u8]| {
    let mut input = Input(data);
    let first = input.byte();
    let (dummy, drops) = (DUMMIES[usize::from(first % 4)], first & 4 != 0);
    let pieces = input.list(|input| (PieceRole::try_from(input.byte() % 3).unwrap_or_default(), input.bytes()));
    let text = input.bytes();
    let ids = input.list(|input| i32::from(input.byte().cast_signed()));
    let roles: Vec<PieceRole> = pieces.iter().map(|&(role, _)| role).collect();
    let mut table = PieceTable::new(pieces.iter().map(|(_, piece)| Some(piece)), &roles, dummy).expect("they fit");
    if drops {
        table = table.dropping_bytes();
    }
    let plain = |byte: &u8| pieces.iter().any(|(role, piece)| *role == PieceRole::Plain && piece.contains(byte));
    let is_kept = |byte: &u8| !drops || plain(byte);

    let mut spans = vec![[7; 2]; ids.len()];
    if spans_from_ids_into(&table, &ids, &text, &mut spans).expect("it fits") {
        check(&pieces, &ids, &text, &spans, is_kept);
    } else {
        assert!(spans.iter().all(|&span| span == [0; 2]));
    }
    if let Ok((text, decoded)) = decode(&table, &ids) {
        check(&pieces, &ids, &text, &decoded, is_kept);
        // The bytes of a special token may follow it in the text by chance. They are then taken for the token.
        if !roles.contains(&PieceRole::Special) {
            let spans = spans_from_ids(&table, &ids, &text).expect("it fits");
            assert_eq!(spans, Some(decoded), "{ids:?} give {text:?}");
        }
    }
});

fn check(pieces: &[(PieceRole, Vec<u8>)], ids: &[i32], text: &[u8], spans: &[[i32; 2]], is_kept: impl Fn(&u8) -> bool) {
    let kept = |bytes: &[u8]| bytes.iter().copied().filter(&is_kept).collect::<Vec<u8>>();
    let mut at = 0;
    for (&id, span) in ids.iter().zip(spans) {
        let [start, end] = span.map(|at| usize::try_from(at).expect("in the text"));
        let (role, piece) = &pieces[usize::try_from(id).expect("a known id")];
        assert_eq!(start, at, "the spans follow one another");
        let own = &text[start..end];
        let beside = *role == PieceRole::Special && own.is_empty();
        let after_dummy = *role == PieceRole::Plain && piece[1..] == *kept(own) && piece[0] == b' ';
        assert!(kept(piece) == kept(own) || beside || after_dummy, "{piece:?} at {own:?}");
        at = end;
    }
    assert_eq!(at, text.len(), "they cover the text");
}
