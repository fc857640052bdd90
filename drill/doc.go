// Package drill breaks things on purpose: it runs prefill and decode ranks as processes, carries rooms between them through proxies of its
// own, and applies one fault at one moment of one room. For each such cell it says whether everyone who waits was told, with a cause that
// fits; whether any page holds bytes that are not its owner's; whether all pages came back and all tables are empty; and whether the next
// rooms work. docs/operations.md says what a cell is and what it takes to be ok.
//
// A rank process (Serve) is a handoff rank over the public API, driven by JSON lines. The drill is the client: it opens the room on both
// sides and waits for their verdicts. It cancels the leg on prefill when the other has ended before the two had met, as a gateway does;
// otherwise every side must notice by itself. Cells in which a client waits at a gateway run the product's own commands instead.
//
// Faults of processes are signals. Faults of the network are made by the proxies, through which every connection of a pair passes, and which
// stop at a message or a byte that marks a moment. Faults of an engine come from a wrapper around it. The product has no switch for any.
//
// # Stamps
//
// Every 32 bytes of a page say whose they are: room, life, chunk, page, region and position. As soon as a rank learns that a room is
// quiescent it writes a guard over its pages. A late write, or a late read of reused pages, shows as a stamp that is not its place's.
package drill
