"""The comparison as a picture: speed of PyTorch's best and ours in multiples of torch.compile's."""

GREY, LIGHT, BLUE = "#8c959f", "#c8ced4", "#1f6feb"


def entries(rows, fp8, parts):
    """(label, best PyTorch, ours), in multiples of torch.compile; rows that lack a side are left out."""
    for r in rows:
        if r["speedup"]:
            best = r["pytorch_ms"] / r["pytorch_best_ms"] if r["pytorch_best_ms"] else None
            yield f"Llama {r['model'].upper()}, micro-batch {r['micro_batch']}", best, r["speedup"]
    for r in fp8:
        if r["speedup"]:
            yield f"Llama {r['model'].upper()}, micro-batch {r['micro_batch']}, fp8", None, r["speedup"]
    for row in parts.get("bert", {}).get("rows", []):
        rates = {k: row.get(k, {}).get("sequences_per_second") for k in ("pytorch", "pytorch_best", "ours", "ours_again")}
        if rates["pytorch"] and rates["ours"]:
            mine = min(v for k, v in rates.items() if k.startswith("ours") and v)
            yield (f"BERT-large, {row['batch']} x {row['sequence']}",
                   rates["pytorch_best"] and rates["pytorch_best"] / rates["pytorch"], mine / rates["pytorch"])
    for row in parts.get("resnet", {}).get("rows", []):
        rates = {k: row.get(k, {}).get("images_per_second") for k in ("pytorch", "ours", "ours_again")}
        if rates["pytorch"] and rates["ours"]:
            mine = min(v for k, v in rates.items() if k.startswith("ours") and v)
            yield f"ResNet-50, batch {row['batch']}", None, mine / rates["pytorch"]


def draw(items, caption):
    items = list(items)
    left, width, line, block = 260, 760, 15, 56
    scale = (width - left - 70) / max([1.0] + [ours for _, _, ours in items])
    height = 62 + block * len(items)
    text = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif" font-size="12">',
            f'<rect width="{width}" height="{height}" fill="white"/>',
            '<text x="12" y="22" font-size="15" font-weight="bold">Training speed on one H200, torch.compile = 1</text>',
            f'<text x="12" y="40" fill="#57606a">{caption}</text>']
    for i, (label, best, ours) in enumerate(items):
        y = 56 + i * block
        text.append(f'<text x="12" y="{y + 27}">{label}</text>')
        bars = [(1.0, GREY, "torch.compile"), (best, LIGHT, "best PyTorch"), (ours, BLUE, "Lockstep")]
        for j, (value, colour, name) in enumerate(b for b in bars if b[0]):
            x = left + value * scale
            text.append(f'<rect x="{left}" y="{y + j * line}" width="{value * scale:.1f}" height="{line - 3}" fill="{colour}">'
                        f'<title>{name}</title></rect>')
            text.append(f'<text x="{x + 5:.1f}" y="{y + j * line + 10}" font-size="11">{value:.2f}'
                        f'{" " + name if i == 0 else ""}</text>')
    return "\n".join([*text, "</svg>"]) + "\n"
