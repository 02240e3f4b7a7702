"""Office files with every kind of part, made from XML. A reader must read each part, or name it on the document."""

import zipfile
from pathlib import Path

import pptx
from pptx.util import Inches

OFFICE = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
PACKAGE = "http://schemas.openxmlformats.org/package/2006"
W = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
A = "http://schemas.openxmlformats.org/drawingml/2006/main"
P = "http://schemas.openxmlformats.org/presentationml/2006/main"
S = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
C = "http://schemas.openxmlformats.org/drawingml/2006/chart"
DGM = "http://schemas.openxmlformats.org/drawingml/2006/diagram"
WP = "http://schemas.openxmlformats.org/drawingml/2006/wordprocessingDrawing"
XDR = "http://schemas.openxmlformats.org/drawingml/2006/spreadsheetDrawing"
SPACES = (
    f'xmlns:w="{W}" xmlns:a="{A}" xmlns:p="{P}" xmlns:r="{OFFICE}" xmlns:c="{C}" xmlns:dgm="{DGM}" xmlns:wp="{WP}" '
    f'xmlns:xdr="{XDR}" xmlns:w14="http://schemas.microsoft.com/office/word/2010/wordml" '
    'xmlns:v="urn:schemas-microsoft-com:vml" xmlns:o="urn:schemas-microsoft-com:office:office" '
    'xmlns:m="http://schemas.openxmlformats.org/officeDocument/2006/math" '
    'xmlns:wps="http://schemas.microsoft.com/office/word/2010/wordprocessingShape" '
    'xmlns:mc="http://schemas.openxmlformats.org/markup-compatibility/2006"'
)
PICTURE = b"\x89PNG\r\n\x1a\n" + bytes(64)

CHART = (
    f"<c:chartSpace {SPACES}><c:chart><c:title><c:tx><c:rich><a:p><a:r><a:t>chart title</a:t></a:r></a:p></c:rich>"
    "</c:tx></c:title><c:plotArea><c:barChart><c:ser><c:tx><c:strRef><c:strCache><c:pt idx='0'><c:v>series name</c:v>"
    "</c:pt></c:strCache></c:strRef></c:tx><c:cat><c:strRef><c:strCache><c:pt idx='0'><c:v>category one</c:v></c:pt>"
    "</c:strCache></c:strRef></c:cat><c:val><c:numRef><c:numCache><c:formatCode>0%</c:formatCode><c:pt idx='0'>"
    "<c:v>0.25</c:v></c:pt></c:numCache></c:numRef></c:val></c:ser></c:barChart><c:valAx><c:title><c:tx><c:rich><a:p>"
    "<a:r><a:t>axis title</a:t></a:r></a:p></c:rich></c:tx></c:title></c:valAx></c:plotArea></c:chart></c:chartSpace>"
)
DIAGRAM = (
    f"<dgm:dataModel {SPACES}><dgm:ptLst><dgm:pt modelId='1' type='doc'/>"
    "<dgm:pt modelId='3'><dgm:t><a:p><a:r><a:t>smart child</a:t></a:r></a:p></dgm:t></dgm:pt>"
    "<dgm:pt modelId='2'><dgm:t><a:p><a:r><a:t>smart parent</a:t></a:r></a:p></dgm:t></dgm:pt></dgm:ptLst>"
    "<dgm:cxnLst><dgm:cxn modelId='4' srcId='1' destId='2' srcOrd='0'/>"
    "<dgm:cxn modelId='5' srcId='2' destId='3' srcOrd='0'/></dgm:cxnLst></dgm:dataModel>"
)


def relationships_xml(*targets: tuple[str, str, str]) -> str:
    """Return a relationships part: id, kind and target of each one. A target with a colon is external."""
    lines = [
        f'<Relationship Id="{relation_id}" Type="{OFFICE}/{kind}" Target="{target}"'
        f"{' TargetMode=' + chr(34) + 'External' + chr(34) if ':' in target else ''}/>"
        for relation_id, kind, target in targets
    ]
    return f'<Relationships xmlns="{PACKAGE}/relationships">{"".join(lines)}</Relationships>'


def package(path: Path, kind: str, main: str, members: dict[str, str | bytes]) -> Path:
    """Write a package with a main part of this content type."""
    types = (
        f'<Types xmlns="{PACKAGE}/content-types"><Default Extension="rels" '
        'ContentType="application/vnd.openxmlformats-package.relationships+xml"/>'
        '<Default Extension="xml" ContentType="application/xml"/><Default Extension="png" ContentType="image/png"/>'
        '<Default Extension="bin" ContentType="application/octet-stream"/>'
        '<Default Extension="html" ContentType="text/html"/>'
        f'<Override PartName="/{main}" ContentType="application/vnd.openxmlformats-officedocument.{kind}.main+xml"/>'
        "</Types>"
    )
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("[Content_Types].xml", types)
        archive.writestr("_rels/.rels", relationships_xml(("rId1", "officeDocument", main)))
        for name, data in members.items():
            archive.writestr(name, data)
    return path


def run(text: str, properties: str = "") -> str:
    return f"<w:r>{properties}<w:t>{text}</w:t></w:r>"


def paragraph(*inner: str) -> str:
    return f"<w:p>{''.join(inner)}</w:p>"


def frame(graphic: str, descr: str = "") -> str:
    return (
        f"<w:r><w:drawing><wp:inline><wp:docPr id='9' name='x' descr='{descr}'/><a:graphic><a:graphicData>{graphic}"
        "</a:graphicData></a:graphic></wp:inline></w:drawing></w:r>"
    )


def word(path: Path) -> Path:
    """A text document with every kind of part."""
    box = f"<w:txbxContent>{paragraph(run('text box'))}</w:txbxContent>"
    body = (
        paragraph(run("plain text"), "<w:r><w:footnoteReference w:id='1'/><w:endnoteReference w:id='1'/></w:r>"),
        paragraph(run("commented"), "<w:r><w:commentReference w:id='0'/></w:r>"),
        paragraph(f"<w:hyperlink r:id='rLink'>{run('link text')}</w:hyperlink>"),
        paragraph(f"<w:ins w:id='1' w:author='a'>{run('inserted text')}</w:ins>"),
        paragraph("<w:del w:id='2' w:author='a'><w:r><w:delText>deleted text</w:delText></w:r></w:del>"),
        paragraph(f"<w:moveFrom w:id='3' w:author='a'>{run('moved away')}</w:moveFrom>"),
        paragraph(run("hidden text", "<w:rPr><w:vanish/></w:rPr>")),
        paragraph(f"<w:r><w:pict><v:shape alt='old picture'><v:textbox>{box}</v:textbox></v:shape></w:pict></w:r>"),
        paragraph("<w:r><w:pict><v:shape><v:textpath string='WATERMARK'/></v:shape></w:pict></w:r>"),
        paragraph(frame("<c:chart r:id='rChart'/>", "alt text of a chart")),
        paragraph(frame("<dgm:relIds r:dm='rData'/>")),
        paragraph("<w:r><w:sym w:font='Wingdings' w:char='F0FE'/></w:r>", run(" ticked box")),
        paragraph("<w:r><w:sym w:font='Acme Icons' w:char='F041'/></w:r>", run("after a symbol")),
        paragraph(
            "<w:r><w:fldChar w:fldCharType='begin'><w:ffData><w:checkBox><w:default w:val='1'/></w:checkBox></w:ffData>"
            "</w:fldChar></w:r><w:r><w:fldChar w:fldCharType='end'/></w:r>",
            run(" old box"),
        ),
        paragraph(
            "<w:sdt><w:sdtPr><w:dropDownList><w:listItem w:displayText='other choice' w:value='2'/></w:dropDownList>"
            f"</w:sdtPr><w:sdtContent>{run('shown choice')}</w:sdtContent></w:sdt>"
        ),
        paragraph(
            f"<w:r><w:ruby><w:rubyPr/><w:rt>{run('reading')}</w:rt><w:rubyBase>{run('base')}</w:rubyBase></w:ruby></w:r>"
        ),
        paragraph("<m:oMath><m:r><m:t>E=mc2</m:t></m:r></m:oMath>"),
        f"<w:tbl><w:tr><w:tc>{paragraph(run('cell text'))}</w:tc></w:tr></w:tbl>",
        "<w:altChunk r:id='rChunk'/>",
        "<w:sectPr><w:headerReference w:type='default' r:id='rHead'/><w:footerReference w:type='default' r:id='rFoot'/>"
        "<w:headerReference w:type='first' r:id='rFirst'/></w:sectPr>",
    )
    margin = paragraph(
        run("running header"), run(" page "), "<w:fldSimple w:instr=' PAGE '><w:r><w:t>7</w:t></w:r></w:fldSimple>"
    )
    members: dict[str, str | bytes] = {
        "word/document.xml": f"<w:document {SPACES}><w:body>{''.join(body)}</w:body></w:document>",
        "word/_rels/document.xml.rels": relationships_xml(
            ("rLink", "hyperlink", "https://link.example.org/a"),
            ("rFoot1", "footnotes", "footnotes.xml"),
            ("rEnd", "endnotes", "endnotes.xml"),
            ("rCom", "comments", "comments.xml"),
            ("rChart", "chart", "charts/chart1.xml"),
            ("rData", "diagramData", "diagrams/data1.xml"),
            ("rChunk", "aFChunk", "afchunk.html"),
            ("rHead", "header", "header1.xml"),
            ("rFoot", "footer", "footer1.xml"),
            ("rFirst", "header", "header2.xml"),
            ("rOle", "oleObject", "embeddings/oleObject1.bin"),
            ("rGlossary", "glossaryDocument", "glossary/document.xml"),
            ("rPicture", "image", "media/image1.png"),
        ),
        "word/footnotes.xml": f"<w:footnotes {SPACES}><w:footnote w:id='1'>{paragraph(run('footnote text'))}"
        "</w:footnote></w:footnotes>",
        "word/endnotes.xml": f"<w:endnotes {SPACES}><w:endnote w:id='1'>{paragraph(run('endnote text'))}"
        "</w:endnote></w:endnotes>",
        "word/comments.xml": f"<w:comments {SPACES}><w:comment w:id='0' w:author='Ann'>{paragraph(run('comment text'))}"
        "</w:comment></w:comments>",
        "word/charts/chart1.xml": CHART,
        "word/charts/_rels/chart1.xml.rels": relationships_xml(("r1", "package", "../embeddings/chart.xlsx")),
        "word/embeddings/chart.xlsx": b"PK",
        "word/diagrams/data1.xml": DIAGRAM,
        "word/afchunk.html": "<p>included text</p>",
        "word/header1.xml": f"<w:hdr {SPACES}>{margin}</w:hdr>",
        "word/header2.xml": f"<w:hdr {SPACES}>{paragraph(run('header of no page'))}</w:hdr>",
        "word/footer1.xml": f"<w:ftr {SPACES}>{paragraph(run('footer text'))}</w:ftr>",
        "word/embeddings/oleObject1.bin": b"\xd0\xcf",
        "word/glossary/document.xml": f"<w:glossaryDocument {SPACES}>{paragraph(run('block'))}</w:glossaryDocument>",
        "word/media/image1.png": PICTURE,
        "customXml/item1.xml": "<data><field>bound value</field></data>",
        "word/future.xml": "<x>part of a later version</x>",
    }
    return package(path, "wordprocessingml.document", "word/document.xml", members)


def sheets(path: Path) -> Path:
    """A workbook with every kind of part."""

    def text(cell: str, words: str) -> str:
        return f'<c r="{cell}" t="inlineStr"><is><t>{words}</t></is></c>'

    sheet = (
        f'<worksheet xmlns="{S}" xmlns:r="{OFFICE}"><cols><col min="5" max="5" hidden="1"/></cols><sheetData>'
        f'<row r="1">{text("A1", "header one")}{text("B1", "header two")}{text("E1", "hidden column")}</row>'
        f'<row r="2" hidden="1">{text("A2", "hidden row")}<c r="B2"><f>1+1</f></c></row>'
        f'<row r="3">{text("A3", "linked cell")}<c r="B3" t="b"><v>1</v></c></row></sheetData>'
        '<conditionalFormatting sqref="A1"><cfRule type="expression" priority="1"><formula>A1&gt;1</formula></cfRule>'
        "</conditionalFormatting>"
        '<dataValidations count="1"><dataValidation type="list" sqref="A3"><formula1>"a,b"</formula1></dataValidation>'
        '</dataValidations><hyperlinks><hyperlink ref="A3" r:id="rLink"/></hyperlinks>'
        "<headerFooter><oddHeader>&amp;Lprinted header &amp;P</oddHeader></headerFooter>"
        '<drawing r:id="rDraw"/></worksheet>'
    )
    drawing = (
        f"<xdr:wsDr {SPACES}><xdr:twoCellAnchor><xdr:sp><xdr:nvSpPr><xdr:cNvPr id='2' name='b' descr='alt text'/>"
        "</xdr:nvSpPr><xdr:txBody><a:p><a:r><a:t>text box</a:t></a:r></a:p></xdr:txBody></xdr:sp></xdr:twoCellAnchor>"
        "<xdr:twoCellAnchor><xdr:graphicFrame><a:graphic><a:graphicData><c:chart r:id='rChart'/></a:graphicData>"
        "</a:graphic></xdr:graphicFrame></xdr:twoCellAnchor></xdr:wsDr>"
    )
    workbook = (
        f'<workbook xmlns="{S}" xmlns:r="{OFFICE}"><sheets><sheet name="Main" sheetId="1" r:id="r1"/>'
        '<sheet name="Away" sheetId="2" state="hidden" r:id="r2"/></sheets>'
        "<definedNames><definedName name='TaxRate'>0.19</definedName></definedNames></workbook>"
    )
    hidden_sheet = f'<worksheet xmlns="{S}"><sheetData><row r="1">{text("A1", "secret")}</row></sheetData></worksheet>'
    members: dict[str, str | bytes] = {
        "xl/workbook.xml": workbook,
        "xl/_rels/workbook.xml.rels": relationships_xml(
            ("r1", "worksheet", "worksheets/sheet1.xml"),
            ("r2", "worksheet", "worksheets/sheet2.xml"),
            ("r3", "styles", "styles.xml"),
            ("r4", "externalLink", "externalLinks/externalLink1.xml"),
        ),
        "xl/styles.xml": f'<styleSheet xmlns="{S}"><cellXfs><xf/></cellXfs></styleSheet>',
        "xl/worksheets/sheet1.xml": sheet,
        "xl/worksheets/sheet2.xml": hidden_sheet,
        "xl/worksheets/_rels/sheet1.xml.rels": relationships_xml(
            ("rLink", "hyperlink", "https://link.example.org/a"),
            ("rDraw", "drawing", "../drawings/drawing1.xml"),
            ("rCom", "comments", "../comments1.xml"),
            ("rOle", "oleObject", "../embeddings/oleObject1.bin"),
        ),
        "xl/comments1.xml": f'<comments xmlns="{S}"><commentList><comment ref="A1"><text><t>comment text</t></text>'
        "</comment></commentList></comments>",
        "xl/drawings/drawing1.xml": drawing,
        "xl/drawings/_rels/drawing1.xml.rels": relationships_xml(("rChart", "chart", "../charts/chart1.xml")),
        "xl/charts/chart1.xml": CHART,
        "xl/embeddings/oleObject1.bin": b"\xd0\xcf",
        "xl/externalLinks/externalLink1.xml": f'<externalLink xmlns="{S}"><v>other workbook</v></externalLink>',
    }
    return package(path, "spreadsheetml.sheet", "xl/workbook.xml", members)


def slides(path: Path) -> Path:
    """A presentation with every kind of part: one of python-pptx with the parts added."""
    presentation = pptx.Presentation()
    slide = presentation.slides.add_slide(presentation.slide_layouts[5])
    assert slide.shapes.title is not None
    slide.shapes.title.text = "slide title"
    box = slide.shapes.add_textbox(0, Inches(3), Inches(2), Inches(1))
    text_run = box.text_frame.paragraphs[0].add_run()
    text_run.text = "linked words"
    text_run.hyperlink.address = "https://link.example.org/a"
    table = slide.shapes.add_table(1, 2, 0, Inches(5), Inches(2), Inches(1)).table
    table.cell(0, 0).text, table.cell(0, 1).text = "cell text", "next cell"
    notes = slide.notes_slide.notes_text_frame
    assert notes is not None
    notes.text = "speaker notes"
    hidden_slide = presentation.slides.add_slide(presentation.slide_layouts[5])
    assert hidden_slide.shapes.title is not None
    hidden_slide.shapes.title.text = "hidden slide"
    hidden_slide._element.set("show", "0")
    plain_path = path.with_suffix(".plain")
    presentation.save(str(plain_path))
    shapes = (
        "<p:pic><p:nvPicPr><p:cNvPr id='70' name='x' descr='alt text'/><p:cNvPicPr/><p:nvPr/></p:nvPicPr>"
        "<p:blipFill/><p:spPr/></p:pic>"
        "<mc:AlternateContent><mc:Choice Requires='a14'><p:sp><p:nvSpPr><p:cNvPr id='71' name='y'/><p:cNvSpPr/>"
        "<p:nvPr/></p:nvSpPr><p:spPr/><p:txBody><a:bodyPr/><a:p><a:pPr><a:buAutoNum type='arabicPeriod' startAt='3'/>"
        "</a:pPr><a:r><a:t>third step</a:t></a:r></a:p></p:txBody></p:sp></mc:Choice><mc:Fallback/>"
        "</mc:AlternateContent>"
        "<p:graphicFrame><p:nvGraphicFramePr><p:cNvPr id='72' name='z'/><p:cNvGraphicFramePr/><p:nvPr/>"
        "</p:nvGraphicFramePr><p:xfrm><a:off x='0' y='0'/><a:ext cx='1' cy='1'/></p:xfrm><a:graphic><a:graphicData "
        "uri='http://schemas.openxmlformats.org/drawingml/2006/diagram'><dgm:relIds r:dm='rData'/></a:graphicData>"
        "</a:graphic></p:graphicFrame>"
        "<p:graphicFrame><p:nvGraphicFramePr><p:cNvPr id='73' name='c'/><p:cNvGraphicFramePr/><p:nvPr/>"
        "</p:nvGraphicFramePr><p:xfrm><a:off x='0' y='0'/><a:ext cx='1' cy='1'/></p:xfrm><a:graphic><a:graphicData "
        "uri='http://schemas.openxmlformats.org/drawingml/2006/chart'><c:chart r:id='rChart'/></a:graphicData>"
        "</a:graphic></p:graphicFrame>"
    )
    relations = relationships_xml(
        ("rData", "diagramData", "../diagrams/data1.xml"),
        ("rChart", "chart", "../charts/chart1.xml"),
        ("rCom", "comments", "../comments/comment1.xml"),
        ("rOle", "oleObject", "../embeddings/oleObject1.bin"),
    ).partition(">")[2]
    layout = (
        "<p:sp><p:nvSpPr><p:cNvPr id='80' name='f'/><p:cNvSpPr/><p:nvPr/></p:nvSpPr><p:spPr/><p:txBody><a:bodyPr/>"
        "<a:p><a:r><a:t>layout text</a:t></a:r></a:p></p:txBody></p:sp></p:spTree>"
    )
    with zipfile.ZipFile(plain_path) as source, zipfile.ZipFile(path, "w") as archive:
        for name in source.namelist():
            data = source.read(name).decode("utf-8", "surrogateescape")
            if name == "ppt/slides/slide1.xml":
                spaces = " ".join(space for space in SPACES.split() if space.split("=")[0] not in data)
                data = data.replace("<p:sld ", f"<p:sld {spaces} ", 1)
                data = data.replace("</p:spTree>", f"{shapes}</p:spTree>")
            elif name == "ppt/slides/_rels/slide1.xml.rels":
                data = data.replace("</Relationships>", relations)
            elif name == "ppt/slideLayouts/slideLayout6.xml":
                data = data.replace("</p:spTree>", layout)
            elif name == "[Content_Types].xml":
                data = data.replace(
                    "</Types>", '<Default Extension="bin" ContentType="application/octet-stream"/></Types>'
                )
            archive.writestr(name, data.encode("utf-8", "surrogateescape"))
        archive.writestr("ppt/diagrams/data1.xml", DIAGRAM)
        archive.writestr("ppt/charts/chart1.xml", CHART)
        archive.writestr(
            "ppt/comments/comment1.xml", f"<p:cmLst {SPACES}><p:cm><p:text>comment text</p:text></p:cm></p:cmLst>"
        )
        archive.writestr("ppt/embeddings/oleObject1.bin", b"\xd0\xcf")
    plain_path.unlink()
    return path


OPEN_SPACES = (
    " ".join(
        f'xmlns:{short}="urn:oasis:names:tc:opendocument:xmlns:{name}:1.0"'
        for short, name in {
            "office": "office",
            "text": "text",
            "table": "table",
            "draw": "drawing",
            "style": "style",
            "presentation": "presentation",
            "svg": "svg-compatible",
            "form": "form",
        }.items()
    )
    + ' xmlns:xlink="http://www.w3.org/1999/xlink" xmlns:dc="http://purl.org/dc/elements/1.1/"'
)


def open_package(path: Path, kind: str, body: str, styles: str = "", **members: bytes) -> Path:
    """Write an OpenDocument file of a kind with the given body and styles."""
    content = (
        f"<office:document-content {OPEN_SPACES}>{styles}<office:body><office:{kind}>{body}</office:{kind}>"
        "</office:body></office:document-content>"
    )
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("mimetype", f"application/vnd.oasis.opendocument.{kind}")
        archive.writestr("content.xml", content)
        for name, data in members.items():
            archive.writestr(name.replace("__", "/").replace("_xml", ".xml"), data)
    return path


def open_text(path: Path) -> Path:
    """An OpenDocument text with every kind of part."""
    body = (
        "<text:tracked-changes><text:changed-region><text:deletion><text:p>deleted text</text:p></text:deletion>"
        "</text:changed-region></text:tracked-changes>"
        "<office:forms><form:form><form:checkbox form:label='a control'/></form:form></office:forms>"
        "<text:h text:outline-level='1'>heading text</text:h>"
        "<text:p>plain text<text:note><text:note-body><text:p>footnote text</text:p></text:note-body></text:note>"
        "<office:annotation><dc:creator>Ann</dc:creator><text:p>comment text</text:p></office:annotation></text:p>"
        "<text:p><text:a xlink:href='https://link.example.org/a'>linked words</text:a></text:p>"
        "<text:p><draw:frame><draw:text-box><text:p>text box</text:p></draw:text-box><svg:desc>alt text</svg:desc>"
        "</draw:frame></text:p>"
        "<text:p><draw:frame><draw:object xlink:href='./Object 1'/></draw:frame></text:p>"
        "<text:p><text:hidden-text>hidden text</text:hidden-text></text:p>"
        "<text:list text:style-name='L1'><text:list-item><text:p>first item</text:p><text:list><text:list-item>"
        "<text:p>inner item</text:p></text:list-item></text:list></text:list-item></text:list>"
        "<table:table><table:table-row><table:table-cell table:number-rows-spanned='2'><text:p>cell text</text:p>"
        "</table:table-cell><table:table-cell><text:p>right</text:p></table:table-cell></table:table-row>"
        "<table:table-row><table:covered-table-cell/><table:table-cell><text:p>below</text:p></table:table-cell>"
        "</table:table-row></table:table>"
    )
    styles = (
        "<office:automatic-styles><text:list-style style:name='L1'><text:list-level-style-number text:level='1' "
        "style:num-format='1' style:num-suffix='.'/><text:list-level-style-number text:level='2' style:num-format='1' "
        "text:display-levels='2'/></text:list-style></office:automatic-styles>"
    )
    chart = (
        f"<office:document-content {OPEN_SPACES} xmlns:chart='urn:oasis:names:tc:opendocument:xmlns:chart:1.0'>"
        "<office:body><office:chart><chart:chart><chart:title><text:p>chart title</text:p></chart:title><table:table>"
        "<table:table-row><table:table-cell><text:p>category one</text:p></table:table-cell><table:table-cell>"
        "<text:p>25 %</text:p></table:table-cell></table:table-row></table:table></chart:chart></office:chart>"
        "</office:body></office:document-content>"
    )
    page_styles = (
        f"<office:document-styles {OPEN_SPACES}><office:master-styles><style:master-page><style:header><text:p>"
        "running header <text:page-number>1</text:page-number></text:p></style:header></style:master-page>"
        "</office:master-styles></office:document-styles>"
    )
    members = {
        "Object 1__content_xml": chart.encode(),
        "styles_xml": page_styles.encode(),
        "Pictures__1.png": PICTURE,
        "future_xml": b"<x>part of a later version</x>",
    }
    return open_package(path, "text", body, styles, **members)
